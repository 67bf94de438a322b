# SPDX-License-Identifier: Apache-2.0
"""Entry of the `sqreal` command. It imports the command's modules only once an interrupt during that is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqsim.cli.early_interrupt import early_interrupt

__all__ = ["app", "main"]

if TYPE_CHECKING:
    from sqreal.cli.app import app
else:

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sqreal.cli.app import app  # noqa: PLC0415 - see above

        return app


def main() -> None:
    """Run the command line; every error is one line on stderr and an exit code."""
    with early_interrupt():
        from sqreal.cli.app import app  # noqa: PLC0415 - see above
        from sqsim.cli.output import run_to_exit  # noqa: PLC0415 - see above
    run_to_exit(app)
