# SPDX-License-Identifier: Apache-2.0
"""Entry of the `sqsim` command; `app.py` has its verbs."""

from __future__ import annotations

from sqsim.cli.early_interrupt import run_command


def main() -> None:
    """Run the command line; every error is one line on stderr and an exit code."""
    run_command("sqsim.cli.app")
