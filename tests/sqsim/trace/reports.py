# SPDX-License-Identifier: Apache-2.0
"""What tests look at in an import's report."""

from __future__ import annotations

from sqsim.trace.importing import ImportReport

GENERAL = (
    "no usage and no system prompt in a recording",
    "a recording without any tool call",
)
"""Beginnings of warnings that hold for most recordings that a test writes by hand."""


def changes(report: ImportReport) -> dict[str, int]:
    """The warnings that are about what the import changed."""
    return {text: times for text, times in report.warnings.items() if not text.startswith(GENERAL)}
