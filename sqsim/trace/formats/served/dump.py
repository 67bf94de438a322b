# SPDX-License-Identifier: Apache-2.0
"""Importer of SGLang's own request dumps: pickles of requests with answers, read without executing them.

`/configure_logging` with `dump_requests_folder`, and `--crash-dump-folder`, write files with a dict whose `requests` are
tuples (request, answer, created, finished); times are seconds since 1970 (tokenizer_manager.py of SGLang 0.5.16 and 0.5.23).
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Format, SourceFile, Unit
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.log import OWN
from sqsim.trace.formats.served.pickles import Record, read_pickle
from sqsim.trace.formats.served.request import MOST, Ids, Sequent, Served, Tool
from sqsim.trace.formats.served.tasks import served_tasks
from sqsim.trace.schema import Task

SUFFIX = ".pkl"
_PLAIN = {
    "__builtin__.object",  # before protocol 3
    "__builtin__.set",
    "builtins.object",
    "builtins.set",
    "builtins.frozenset",
    "builtins.bytearray",
    "builtins.complex",
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.deque",
    "datetime.datetime",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "types.SimpleNamespace",
    "uuid.UUID",
    "http.HTTPStatus",
    "torch.Size",
    "torch.device",
    "torch.dtype",
}

_SERVER = (
    re.compile(r"sglang\.srt\.[\w.]+"),
    re.compile(r"torch\.(float|bfloat|int|uint)\w*"),  # dtypes
    re.compile(r"transformers(_modules)?\.[\w.]+Config"),
)
"""Names in the server's arguments, which a dump holds beside its requests."""


def allowed(name: str) -> bool:
    """Whether a dump may hold an object of this name; it is an inert record in any case."""
    return name in _PLAIN or any(pattern.fullmatch(name) for pattern in _SERVER)


def is_dump(path: Path) -> bool:
    """Whether a file is a pickle by its name or by its first byte, the opcode PROTO."""
    if not path.is_file():
        return False  # opening a pipe waits for a writer, which may never come
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(2)
    except OSError:
        return False  # whoever reads it names the fault
    return len(head) == 2 and head[0] == 0x80 and head[1] <= 5


class SglangDump(Format):
    """One task a conversation among the dumped requests."""

    name = "sglang_dump"

    def evidence(self, head: Sequence[Any]) -> str | None:  # noqa: ARG002 - a pickle is no JSON; `is_dump` decides
        return None

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        yield from self._tasks([file], notes)

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield one unit of all files: a conversation goes on from one dump to the next."""
        good = []
        for file in files:
            try:
                _requests(file.path)
            except TraceError as fault:
                if len(files) == 1:
                    raise
                notes.unreadable(file.path, fault)
                continue
            good.append(file)
        if good:
            yield Unit(good[0], partial(self._tasks, good, notes))

    def _tasks(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Task]:
        found: dict[tuple[str, float | None], Served] = {}
        for file in files:
            for number, row in enumerate(_requests(file.path)):
                for call in _served(row, file.path, number, notes):
                    key = (call.rid, call.begins_s)
                    if key in found:
                        notes["a request that was dumped before (same id) was left out"] += 1
                    elif OWN.match(call.rid):
                        notes["a request of a warm-up or health check was left out"] += 1
                    else:
                        found[key] = call
        calls = sorted(found.values(), key=lambda call: call.begins_s or 0.0)
        yield from served_tasks(calls, files[0], self.name, notes)


def _requests(path: Path) -> list[Any]:
    value = read_pickle(path, allowed)
    requests = value.get("requests") if isinstance(value, dict) else None
    if not isinstance(requests, list):
        raise TraceError(
            "the pickle is no request dump of SGLang: it has no list of requests",
            file=path,
            fix="give a .pkl that SGLang's dump_requests_folder or --crash-dump-folder wrote",
        )
    return requests


def _served(row: Any, path: Path, number: int, notes: Notes) -> Iterator[Served]:
    """Read a dumped request; a batch gives one request each."""
    if not isinstance(row, tuple) or len(row) != 4 or not isinstance(row[0], Record):
        raise TraceError(
            f"requests[{number}] is not (request, answer, created, finished)", file=path, fix="dump it again"
        )
    request, answer, created, finished = row
    if not isinstance(answer, dict) or not request.named.endswith(".GenerateReqInput"):
        notes["a dumped request that generates nothing (embedding, scoring) was left out"] += 1
        return
    told = answer.get("meta_info")
    meta: dict[str, Any] = told if isinstance(told, dict) else {}
    prompt, output = _ids(request.get("input_ids")), _ids(answer.get("output_ids"))
    if prompt is None:
        notes[
            "a dumped request without token ids was left out (SGLang dumps them where the client sent them; "
            "for chats use sqreal's recorder)"
        ] += 1
        return
    if output is None:
        notes["a dumped request without output token ids was left out"] += 1
        return
    session = request.get("session_params")
    reason = meta.get("finish_reason")
    rid = meta.get("id") or request.get("rid")
    if isinstance(session, dict) and session.get("id") and request.get("input_ids"):
        notes["a turn of a session has only its new tokens in a dump; it was left out"] += 1
        return
    cached = meta.get("cached_tokens")
    counted = meta.get("prompt_tokens")
    if isinstance(counted, int) and counted != len(prompt):
        notes["the server counted another number of prompt tokens than a dump holds"] += 1
    name = request.get("session_id")
    yield Served(
        rid=rid if isinstance(rid, str) and rid else f"{path.stem}:{number}",
        prompt=Sequent(prompt),
        output=output,
        begins_s=_time(created),
        ends_s=_time(finished),
        cached=cached if isinstance(cached, int) and 0 <= cached <= len(prompt) else None,
        session=name if isinstance(name, str) else "",
        tools=_tools(request),
        aborted=isinstance(reason, dict) and reason.get("type") == "abort",
    )


def _tools(request: Record) -> tuple[Tool, ...] | None:
    """Read the tools that a client named for the recorder (sqreal's `sqreal_log`)."""
    sampling = request.get("sampling_params")
    custom = sampling.get("custom_params") if isinstance(sampling, dict) else None
    told = custom.get("sqreal_log") if isinstance(custom, dict) else None
    tools = told.get("tools") if isinstance(told, dict) else None
    if not isinstance(tools, list) or not all(
        isinstance(t, dict) and isinstance(t.get("name"), str) for t in tools
    ):
        return None
    return tuple(Tool(tool["name"], _size(tool.get("tokens")), _size(tool.get("chars"))) for tool in tools)


def _size(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST else None


def _ids(value: Any) -> Ids[int] | None:
    if not isinstance(value, list | tuple) or not all(
        type(each) is int and 0 <= each <= MOST for each in value
    ):
        return None
    return array("i", value)


def _time(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good and math.isfinite(value) and 0 <= value < 1e11 else None
