# SPDX-License-Identifier: Apache-2.0
"""Importer of `sqreal_log`, the recording of sqreal's plugin (docs/http.md, "A recording").

A recording is a directory of files that one server wrote one after the other. A file is readable alone; a request may
arrive in one and end in the next, so those of one server are read together.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, Node, SourceFile, Unit
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.request import MOST, Ids, Sequent, Served, Tool
from sqsim.trace.formats.served.tasks import served_tasks
from sqsim.trace.schema import Task

SCHEMA = "sqreal_log/1"
OWN = re.compile(r"^[0-9a-f]{8}/warm\d+\.\d+/$|^HEALTH_CHECK")
"""Requests by which sqreal warms a server up, and SGLang checks itself."""


class _Head(NamedTuple):
    """First line of a file."""

    log: str
    number: int
    model: str | None
    offset_s: float  # from the server's monotonic clock to seconds since 1970
    removed: int


class SqrealLog(Format):
    """One task a conversation that the recorded server had."""

    name = "sqreal_log"

    def evidence(self, head: Sequence[Any]) -> str | None:
        first = head[0] if head else None
        if isinstance(first, dict) and first.get("ev") == "start" and first.get("schema") == SCHEMA:
            return f"the first line starts a recording, {SCHEMA}"
        return None

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        yield from self._tasks([file], notes)

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit a server."""
        logs: dict[str, dict[int, SourceFile]] = {}
        for file in files:
            try:
                head = _head(next(file.nodes()))
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
                continue
            if head.number in logs.setdefault(head.log, {}):
                notes["a file of a recording that was given twice was left out"] += 1
                continue
            logs[head.log][head.number] = file
        for parts in logs.values():
            ordered = [file for _, file in sorted(parts.items())]
            yield Unit(ordered[0], partial(self._tasks, ordered, notes))

    def _tasks(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Task]:
        yield from served_tasks(read_log(files, notes), files[0], self.name, notes)


def read_log(files: Sequence[SourceFile], notes: Notes) -> list[Served]:
    """Read the files of one server, in their order: the requests that ended, by arrival. Raises `TraceError`."""
    waiting: dict[str, Served] = {}
    ended: list[tuple[float, int, Served]] = []
    heads: list[_Head] = []
    for file in files:
        known: dict[str, Sequent] = {}
        head: _Head | None = None
        for node in file.nodes():
            event = node.get("ev")
            if head is None:
                head = _head(node)
                heads.append(head)
            elif event == "arrive":
                call = _arrived(node, head, known, notes)
                if call is not None:
                    waiting[call.rid] = call
            elif event == "end":
                rid = node.text("rid")
                began = waiting.pop(rid, None)
                if began is None:
                    notes["the end of a request whose arrival was not recorded was left out"] += 1
                    continue
                _end(node, head, began, notes)
                if rid in known:
                    known[rid] = began.whole
                if OWN.match(rid):
                    notes["a request of a warm-up or health check was left out"] += 1
                else:
                    ended.append((began.begins_s or 0.0, len(ended), began))
            elif event == "flush":
                if any(not OWN.match(call.rid) for *_, call in ended):
                    notes["the server's cache was emptied while it was recorded; no trace can say so"] += 1
            elif event == "lost":
                notes[f"an event was lost by the recorder: {node.text('why')}"] += node.count("events")
            else:
                notes["a line of an unknown kind was left out"] += 1
    _missing(heads, notes)
    unfinished = sum(not OWN.match(rid) for rid in waiting)
    if unfinished:
        notes["a request that had not ended when the recording did was left out"] += unfinished
    return [call for *_, call in sorted(ended, key=lambda each: each[:2])]


def _missing(heads: Sequence[_Head], notes: Notes) -> None:
    """Note the files of a recording that are not there: removed by the recorder, or not given."""
    removed = max((head.removed for head in heads), default=0)
    numbers = {head.number for head in heads}
    for number in range(max(numbers, default=-1)):
        if number < removed and number not in numbers:
            notes["a file of the recording had been removed, as its size is limited"] += 1
        elif number not in numbers:
            notes["a file of the recording is missing"] += 1


def _head(node: Node) -> _Head:
    if node.get("ev") != "start" or node.get("schema") != SCHEMA:
        raise node.wrong(f"does not start a recording, {SCHEMA}", fix="give whole files of the recorder")
    model = node.optional_text("model")
    return _Head(
        node.text("log"),
        node.count("file"),
        model or None,
        node.seconds("wall") - node.seconds("t"),
        node.count("removed"),
    )


def _arrived(node: Node, head: _Head, known: dict[str, Sequent], notes: Notes) -> Served | None:
    rid, new = node.text("rid"), _ids(node)
    if node.get("after") is None:
        prompt = Sequent(new)
    else:
        before, keep = known.get(node.text("after")), node.count("keep")
        if before is None or keep > before.length:
            raise node.wrong(
                f"request {node.text('after')!r} has no {keep} tokens before this line",
                "after",
                "a line is missing; give the file as it was recorded",
            )
        prompt = Sequent(new, before, keep)
    if node.get("n") is not None and node.count("n") != prompt.length:
        raise node.wrong(
            f"{node.count('n')} is not the prompt's {prompt.length} tokens",
            "n",
            "give the file as it was recorded",
        )
    known[rid] = prompt
    if node.get("fault") is not None:
        notes["what a client told the recorder was wrong and is left out"] += 1
    return Served(
        rid=rid,
        prompt=prompt,
        output=array("i"),
        begins_s=node.seconds("t") + head.offset_s,
        ends_s=None,
        cached=None,
        session=node.optional_text("session"),
        model=head.model,
        tools=None if node.get("tools") is None else tuple(map(_tool, node.nodes("tools"))),
        fork=node.get("fork") is not None,
    )


def _end(node: Node, head: _Head, call: Served, notes: Notes) -> None:
    call.output = _ids(node)
    call.ends_s = node.seconds("t") + head.offset_s
    call.cached = node.count("cached")
    call.aborted = node.get("why") == "abort"
    if node.get("retracted"):
        notes["a request was retracted and computed again; its cached tokens are those of its first start"] += 1
    if node.get("n_in") is not None and node.count("n_in") != call.prompt.length and not call.aborted:
        notes["a prompt had another length when it ended than when it arrived"] += 1


def _tool(node: Node) -> Tool:
    tokens, chars = (node.count(key) if node.get(key) is not None else None for key in ("tokens", "chars"))
    return Tool(node.text("name") or "tool", tokens, chars)


def _ids(node: Node) -> Ids[int]:
    ids = node.whole_numbers("ids")
    if ids and not (min(ids) >= 0 and max(ids) <= MOST):
        raise node.wrong("holds a number that is no token id", "ids", "token ids are 0 to 2^31 - 1")
    return array("i", ids)
