# SPDX-License-Identifier: Apache-2.0
"""Evidence of the runs of a sweep, a plan or a region, as a list with marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqsim.record.evidence import evidence_lines
from sqsim.report.html.markup import badged, missing


def evidence_list(evidence: Sequence[dict[str, Any]]) -> str:
    """List the evidence that the points state, each item once."""
    lines = evidence_lines(evidence)
    if not lines:
        return missing("Nothing ran.")
    return f"<ul>{''.join(f'<li>{badged(line)}</li>' for line in lines)}</ul>"
