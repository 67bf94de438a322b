# SPDX-License-Identifier: Apache-2.0
"""Import `request_csv`: serving traces of single requests as CSV, Azure's and BurstGPT's.

Azure (Azure/AzurePublicDataset): `TIMESTAMP, ContextTokens, GeneratedTokens`. BurstGPT (HPMLL/BurstGPT): `Timestamp` (s),
`Request tokens`, `Response tokens`. Each row is a task of one step, as AIPerf reads them: no column says whether a prompt
repeats an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqsim.trace.formats.base import Format, Node, SourceFile
from sqsim.trace.formats.counts import at_least_one
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Answer, Carries, Outcome, Prefix, Question, Task


class _Columns(NamedTuple):
    """Names of a dataset's columns."""

    dataset: str
    time: str
    prompt: str
    output: str


_KNOWN = (
    _Columns("Azure's", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _Columns("BurstGPT's", "Timestamp", "Request tokens", "Response tokens"),
)
_SESSION = "Session ID"


class RequestCsv(Format):
    """One task a row."""

    name = "request_csv"

    def evidence(self, head: Sequence[Any]) -> str | None:
        known = _known(head[0]) if head else None
        return None if known is None else f"its columns are {known.dataset}: {', '.join(known[1:])}"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        first_s: float | None = None
        for number, row in enumerate(file.nodes()):
            known = _known(row.value)
            if known is None:
                names = " or ".join(", ".join(each[1:]) for each in _KNOWN)
                raise row.wrong("has none of the known columns", None, f"give {names}")
            at_s = _time(row, known.time)
            first_s = at_s if first_s is None else first_s
            if at_s < first_s:
                raise row.wrong(f"{row.get(known.time)} is before the first row's", known.time, "sort the rows")
            if row.get(_SESSION):
                notes["a session's rows are tasks of their own: none says whether a prompt repeats one"] += 1
            notes.usage["recorded"] += 1
            yield Task(
                task_id=f"{file.stem}:{number}",
                source=file.source(self.name),
                model=row.get("Model") or None,
                carries=Carries(timing="recorded", usage="recorded"),
                arrival_s=round(at_s - first_s, 6),
                prefix=Prefix(id="none", tokens=0),
                question=Question(tokens=at_least_one(_count(row, known.prompt), "a prompt", notes)),
                turns=(),
                answer=Answer(
                    reasoning_tokens=0, text_tokens=at_least_one(_count(row, known.output), "an output", notes)
                ),
                outcome=Outcome(finish="answer"),
            )


def _known(row: Any) -> _Columns | None:
    if not isinstance(row, dict):
        return None
    return next((known for known in _KNOWN if all(isinstance(row.get(name), str) for name in known[1:])), None)


def _count(row: Node, key: str) -> int:
    return Node({key: _number(row, key)}, row.file, row.line).count(key)


def _number(row: Node, key: str) -> float:
    try:
        return float(row.text(key))
    except ValueError:
        raise row.wrong(f"{row.get(key)!r} is not a number", key) from None


def _time(row: Node, key: str) -> float:
    """Read seconds, or a date with its time of day."""
    text = row.text(key).strip()
    try:
        seconds = float(text)  # before a date: 10450101 is a number of seconds
    except ValueError:
        seconds = None
    if seconds is not None:
        return Node({key: seconds}, row.file, row.line).seconds(key)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.wrong(f"{text!r} is neither seconds nor a date", key) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
