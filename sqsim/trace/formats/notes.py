# SPDX-License-Identifier: Apache-2.0
"""Notes of an import: counted warnings, the calls whose usage was estimated, and the files left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from sqsim.errors import TraceError


class LeftOut(NamedTuple):
    """File that gave no task, and the reason."""

    path: str
    reason: str


class Notes(Counter[str]):
    """Warnings, each with its count.

    `usage`: model calls by how their token counts were found (`recorded`, `estimated`). `evidence`: references in texts by
    the kind of evidence that found them. `strict`: a file that cannot be read is an error.
    """

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self.strict = strict
        self.usage: Counter[str] = Counter()
        self.evidence: Counter[str] = Counter()
        self.left_out: list[LeftOut] = []

    def unreadable(self, path: Path, fault: TraceError) -> None:
        """Note a file that cannot be read, and go on without it. Raises the fault if the import is strict."""
        if self.strict:
            raise fault
        text = str(fault)
        self.leave_out(path, text.removeprefix(f"{path}:").strip())

    def leave_out(self, path: Path, reason: str) -> None:
        """Note a file that gives no task, and count it."""
        self.left_out.append(LeftOut(str(path), reason))
        self["a file was left out"] += 1

    def share_of_usage(self) -> str | None:
        """Describe the usage: `recorded for 57 % of calls, estimated for 43 %`; None if no call was counted."""
        total = self.usage.total()
        if not total:
            return None
        shares = ((how, self.usage[how]) for how in ("recorded", "estimated") if self.usage[how])
        first, *rest = (f"{how} for {_percent(calls, total)} of calls" for how, calls in shares)
        return ", ".join([first, *(part.removesuffix(" of calls") for part in rest)])


def _percent(part: int, whole: int) -> str:
    """Write a share in whole per cent, never rounded to none or all."""
    return f"{min(99, max(1, round(100 * part / whole))) if part < whole else 100} %"
