# SPDX-License-Identifier: Apache-2.0
"""A recorded schedule on disk, read with errors that name file, line, field and fix.

A recording is a folder of four files (their format is described next to the recordings): `server.json` (launch arguments
and pool sizes), `workload.json` (the requests), `responses.json` (the answers), `steps.jsonl.gz` (every event of the
scheduler in order).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqsim.errors import InputError
from sqsim.models.serving.limits import Limits
from sqsim.models.serving.request import Asked, Request
from sqsim.models.serving.tokens import Run, concat, count, literal

T = TypeVar("T")

SCHEDULE = "schedule"
"""Name of the recorded schedule's folder in a real record's directory."""

_FILES = ("server.json", "workload.json", "responses.json", "steps.jsonl.gz")
_WINDOW = 127  # of a hybrid recording that does not state it: sliding_window 128, as in gpt-oss
_AGAIN = "record the run again with the schedule recorder"
_TOO_LARGE = 2**63


@dataclass(frozen=True, slots=True)
class Entry:
    """One JSON object of a recording, with its place (`FILE` or `FILE:LINE`)."""

    data: Mapping[str, Any]
    place: str

    def get(self, field: str, kind: type[T], default: T | None = None) -> T:
        """Return a field of the given kind; without a default it must be there."""
        value = self.data.get(field, default)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            problem = f"is {value!r}, not of kind {kind.__name__}" if field in self.data else "is missing"
            raise InputError(f"{self.place}: {field}: {problem}; {_AGAIN}")
        return value

    def optional(self, field: str, kind: type[T]) -> T | None:
        """Return a field of the given kind, which may be missing or null."""
        return None if self.data.get(field) is None else self.get(field, kind)

    def size(self, field: str, default: int | None = None) -> int:
        """Return a field that is a whole number of at least 1."""
        value = self.get(field, int, default)
        if not 0 < value < _TOO_LARGE:
            raise InputError(f"{self.place}: {field}: is {value}, not a size; {_AGAIN}")
        return value

    def ids(self, field: str) -> list[int]:
        """Return a field that is a list of token ids."""
        values = self.get(field, list)
        for index, value in enumerate(values):
            if type(value) is not int or not 0 <= value < _TOO_LARGE:
                raise InputError(f"{self.place}: {field}[{index}]: is {value!r}, not a token id; {_AGAIN}")
        return values

    def rows(self, field: str, columns: int) -> list[list[Any]]:
        """Return a field that is a list of rows with at least `columns` columns."""
        values = self.get(field, list)
        for index, value in enumerate(values):
            if not isinstance(value, list) or len(value) < columns:
                raise InputError(
                    f"{self.place}: {field}[{index}]: is {value!r}, not a row of {columns}; {_AGAIN}"
                )
        return values

    def entry(self, field: str) -> Entry:
        """Return a field that is an object."""
        return Entry(self.get(field, dict), f"{self.place}: {field}")

    def entries(self, field: str) -> list[Entry]:
        """Return a field that is a list of objects; empty when it is missing."""
        items = self.get(field, list, [])
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise InputError(f"{self.place}: {field}[{index}]: is {item!r}, not an object; {_AGAIN}")
        return [Entry(item, f"{self.place}: {field}[{index}]") for index, item in enumerate(items)]


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording's limits, requests and responses; `events` reads the scheduler's log."""

    directory: Path
    limits: Limits
    requests: Mapping[str, Entry]  # by rid
    responses: Mapping[str, Entry]  # by rid

    def request(self, rid: str, place: str) -> Request:
        """Build the request that arrives under this rid.

        Its output is the server's answer. Where an abort or a limit cut the answer, tokens that occur nowhere else fill
        the rest.
        """
        if rid not in self.requests:
            raise InputError(f"{place}: rid: {rid!r} is not in workload.json; {_AGAIN}")
        asked = self.requests[rid]
        response = self.responses.get(rid)
        said = response.ids("output_ids") if response is not None else []
        ignore_eos = asked.get("ignore_eos", bool, default=False)
        cap = asked.get("max_new_tokens", int)
        prompt = asked.ids("input_ids")
        if not prompt:
            raise InputError(f"{asked.place}: input_ids: the prompt is empty; {_AGAIN}")
        tokens = max(1, cap if ignore_eos else asked.get("n_out", int))
        output = literal(said[:tokens])
        unsaid = tokens - count(output)
        if unsaid:
            # Recorded ids are not negative, so these negative ids never match.
            output = concat(output, (Run(-1 - list(self.requests).index(rid), 0, unsaid),))
        return Request(
            Asked(
                rid=rid,
                prompt=literal(prompt),
                output=output,
                max_new_tokens=cap,
                ignore_eos=ignore_eos,
                session=asked.optional("session", str),
                role="main" if asked.optional("fork_tokens", int) is None else "aux",
                fork_tokens=asked.optional("fork_tokens", int),
                publish_tokens=asked.optional("publish_tokens", int),
                forked=asked.optional("forked", int),
            )
        )

    def events(self) -> Iterator[Entry]:
        """Yield the events in order; `place` is the log's file and line (from 1)."""
        path = self.directory / "steps.jsonl.gz"
        line = 0
        try:
            with gzip.open(path, "rt", encoding="utf-8") as log:
                for line, text in enumerate(log, 1):
                    yield parsed(text, f"{path}:{line}")
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise InputError(f"{path}:{line + 1}: cannot be read ({error}); {_AGAIN}") from error


def read_recording(directory: str | Path) -> Recording:
    """Read a recording without its events; an InputError names the file, the field and the fix."""
    directory = Path(directory)
    missing = [name for name in _FILES if not (directory / name).is_file()]
    if missing:
        inside = (
            sorted(path.parent for path in directory.glob("*/**/steps.jsonl.gz")) if directory.is_dir() else []
        )
        fix = f"try {inside[0]}" if inside else f"a recording is a folder with {', '.join(_FILES)}"
        raise InputError(f"{directory}: no {', '.join(missing)}; {fix}")
    server = _read(directory / "server.json")
    workload = _read(directory / "workload.json")
    responses = _read(directory / "responses.json")
    return Recording(
        directory,
        _limits(server),
        {asked.get("rid", str): asked for asked in workload.entries("requests")},
        {rid: responses.entry(rid) for rid in responses.data},
    )


def _read(path: Path) -> Entry:
    try:
        return parsed(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {_AGAIN}") from error


def parsed(text: str, place: str) -> Entry:
    """Read one JSON object; an InputError names its place."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is no JSON ({error}); {_AGAIN}") from error
    if not isinstance(data, dict):
        raise InputError(f"{place}: is {type(data).__name__}, not an object; {_AGAIN}")
    return Entry(data, place)


def _limits(server: Entry) -> Limits:
    args = server.entry("launch_args")
    hybrid = server.data.get("swa_pool_tokens") is not None
    page = args.size("page_size", 1)
    return Limits(
        kv_capacity=_pool(server, "pool_tokens", page),
        swa_capacity=_pool(server, "swa_pool_tokens", page) if hybrid else None,
        swa_window=server.size("swa_window", _WINDOW) if hybrid else None,
        page_size=page,
        max_running=args.size("max_running_requests"),
        chunked_prefill=args.size("chunked_prefill_size"),
        max_prefill_tokens=args.size("max_prefill_tokens", 16384),
        schedule_conservativeness=args.get("schedule_conservativeness", float, 1.0),
        context_length=args.size("context_length"),
        mixed_chunk=args.get("enable_mixed_chunk", bool, default=False),
        schedule_policy=_policy(args),
        overlap=not args.get("disable_overlap_schedule", bool, default=False),
        release_idle_sessions=args.data.get("radix_cache_backend") == "sidequest",
        refresh_calls=server.get("refresh_calls_before", int, 0),
    )


def _pool(server: Entry, field: str, page: int) -> int:
    tokens = server.size(field)
    if tokens % page:
        raise InputError(f"{server.place}: {field}: {tokens} is no multiple of page_size {page}; {_AGAIN}")
    return tokens


def _policy(args: Entry) -> Literal["fcfs", "lpm"]:
    policy = args.get("schedule_policy", str, "fcfs")
    if policy == "fcfs":
        return "fcfs"
    if policy == "lpm":
        return "lpm"
    raise InputError(f"{args.place}: schedule_policy: {policy!r} is not modelled; use fcfs or lpm")
