# SPDX-License-Identifier: Apache-2.0
"""Lock-step (law 11): given the arrivals of a recorded schedule, the scheduler takes the same decisions, step by step.

`replay` gives a `Scheduler` the arrivals, aborts and session closings of a recording at their place in its log, asks
it for every round, and compares every field that the log states about that round or result. It does not compare times:
they belong to the machine that recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sqsim.errors import InputError
from sqsim.fidelity.recording import Entry, Recording, read_recording
from sqsim.models.serving.scheduler import Batch, Scheduler

_MAX_LINES = 20  # differing log lines after which a replay stops
_TOLERANCE = 3e-3  # the log rounds admission numbers to 4 digits
_RATIO_TOLERANCE = 3e-6  # and the ratio to 6
_ROW_COLUMNS = 9  # of a request in a logged batch


class Difference(NamedTuple):
    """One field in which the simulation and the log disagree."""

    line: int  # of steps.jsonl.gz, from 1
    event: str
    step: int | None  # number of the batch, as logged
    field: str
    logged: object
    simulated: object

    def __str__(self) -> str:
        where = f"line {self.line} ({self.event}{'' if self.step is None else f' {self.step}'})"
        return f"{where}: {self.field}: logged {self.logged}, simulated {self.simulated}"


@dataclass(slots=True)
class Report:
    """The counts and differences of a replay."""

    directory: str
    rounds: int = 0
    batches: int = 0
    evicted_leaves: int = 0
    retractions: int = 0
    held_sessions: int = 0
    differences: list[Difference] = field(default_factory=list)
    stopped_at: int | None = None  # the last line that was compared, where the two decided differently

    @property
    def same(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; logged and simulated values as text."""
        plain = asdict(self)
        plain["differences"] = [
            {**each._asdict(), "logged": str(each.logged), "simulated": str(each.simulated)}
            for each in self.differences
        ]
        return plain


def replay(directory: str | Path) -> Report:
    """Replay a recording through the scheduler; InputError when the recording is malformed."""
    return _Replay(read_recording(directory)).run()


class _Replay:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._scheduler = Scheduler(recording.limits)
        self._batches: dict[int, Batch] = {}  # by the log's step number
        self._report = Report(str(recording.directory))
        self._event = Entry({}, "")
        self._line = 0
        self._apart = False  # did the two decide differently? Then later differences mean nothing
        self._handlers: Mapping[str, Callable[[], None]] = {
            "arrive": self._arrive,
            "abort": lambda: self._scheduler.abort(self._event.get("rid", str)),
            "close_session": lambda: self._scheduler.close_session(self._event.get("id", str)),
            "drop": self._drop,
            "idle": self._idle,
            "step": self._round,
            "nobatch": self._round,
            "result": self._result,
        }

    def run(self) -> Report:
        report = self._report
        for line, event in enumerate(self._recording.events(), 1):
            self._line, self._event = line, event
            handler = self._handlers.get(self._event.get("ev", str))
            if handler is not None:  # other events (open_session, pauses) change nothing here
                self._follow(handler)
            if self._apart or len({difference.line for difference in report.differences}) >= _MAX_LINES:
                report.stopped_at = self._line
                break
        if not report.rounds:
            log = self._recording.directory / "steps.jsonl.gz"
            raise InputError(
                f"{log}: holds no round of the scheduler, so nothing is compared; record the run again"
            )
        return report

    def _follow(self, handler: Callable[[], None]) -> None:
        try:
            handler()
        except AssertionError as error:  # the logged event is impossible in the scheduler's state
            self._decides("possible", expected=True, found=str(error))

    # Events.

    def _arrive(self) -> None:
        event, scheduler = self._event, self._scheduler
        request = self._recording.request(event.get("rid", str), event.place)
        scheduler.submit(request)
        self._compare("max_new", event.get("max_new", int), request.max_new_tokens)
        self._compare("n_in", event.get("n_in", int), request.n_in)

    def _drop(self) -> None:
        spans = [(start, stop) for start, stop in self._event.rows("spans", 2)]
        self._compare(
            "freed", sum(b - a for a, b in spans), self._scheduler.drop(self._event.get("id", str), spans)
        )

    def _idle(self) -> None:
        self._scheduler.became_idle()
        self._compare_pools(self._event.entry("mem"))

    def _round(self) -> None:
        event, scheduler, report = self._event, self._scheduler, self._report
        if "refresh" in event.data:
            scheduler.refresh_calls = event.get("refresh", int)
        for name in event.get("let_go", list, []):
            scheduler.pin(name, pinned=False)
        formed = event.get("ev", str) == "step"
        batch = scheduler.next_batch()
        report.rounds += 1
        self._decides("batch", formed, batch is not None)
        if formed and batch is not None:
            self._batches[event.get("step", int)] = batch
            report.batches += 1
            rows = event.rows("reqs", _ROW_COLUMNS)
            self._decides("mode", event.get("mode", str), batch.mode)
            self._decides("rows", [row[:3] for row in rows], [list(row) for row in batch.rows()])
            self._compare("row n_out", [row[4] for row in rows], [request.n_out for request in batch.requests])
            kv = [request.row for request in batch.requests]
            self._compare("row kv", [row[6] for row in rows], [row.length for row in kv if row is not None])
            # SGLang counts allocated tokens, not pages; without speculation they are the committed ones.
            self._compare(
                "row allocated", [row[7] for row in rows], [row.length for row in kv if row is not None]
            )
            self._compare("row tree", [row[8] for row in rows], [row.shared for row in kv if row is not None])
        self._decides("wait", event.get("wait", list), [request.asked.rid for request in scheduler.waiting])
        self._decides("run", event.get("run", list), [request.asked.rid for request in scheduler.running])
        self._compare("full", event.get("full", bool), scheduler.full)
        chunked = scheduler.chunked.asked.rid if scheduler.chunked is not None else None
        self._compare("chunked", event.data.get("chunked"), chunked)
        self._compare("ratio", event.get("ratio", float), scheduler.ratio, _RATIO_TOLERANCE)
        self._compare_pools(event.entry("post"))
        self._compare_tests()
        done = scheduler.round
        evicted = [eviction.get("leaves", list) for eviction in event.entries("evict")]
        self._compare("evict", evicted, done.evictions)
        self._compare("released", len(event.get("released", list, [])), done.released_sessions)
        self._compare("touch", event.get("touch", list, []), done.touched)
        retractions = event.entries("retract")
        logged = retractions[0].get("retracted", list) if retractions else None
        simulated = None if done.retracted is None else [request.asked.rid for request in done.retracted]
        self._compare("retract", logged, simulated)
        report.evicted_leaves += sum(map(len, evicted))
        report.retractions += len(logged or [])

    def _compare_tests(self) -> None:
        """Compare the admission tests of the round, field by field."""
        tests = self._scheduler.round.tests
        logged = self._event.entries("adm")
        self._compare(
            "adm", [entry.get("rid", str) for entry in logged], [test.request.asked.rid for test in tests]
        )
        for entry, test in zip(logged, tests, strict=False):
            rid = test.request.asked.rid
            if entry.get("chunk", bool, default=False):
                self._compare(f"adm {rid} chunk", expected=True, found=test.chunk)
                self._compare(f"adm {rid} more", entry.get("more", bool), test.more)
            else:
                self._compare(f"adm {rid} need", entry.get("need", int), test.need)
                self._compare(f"adm {rid} rem", entry.get("rem", float), test.remaining, _TOLERANCE)
                self._compare(f"adm {rid} ok", entry.get("ok", bool), test.admitted)
            if "prefix" in entry.data:
                self._compare(f"adm {rid} prefix", entry.get("prefix", int), test.prefix)
            self._compare(f"adm {rid} extend", entry.get("extend", int, 0), test.extend)

    def _result(self) -> None:
        event = self._event
        batch = self._batches.pop(event.get("step", int), None)
        self._decides("result", expected=True, found=batch is not None)
        if batch is None:
            return
        dropped = [r.asked.rid for r in batch.requests if r.finish is not None or r.retracted]
        finished = self._scheduler.process_result(batch).finished
        for name in event.get("held", list, []):
            self._report.held_sessions += 1
            self._scheduler.pin(name, pinned=True)
        self._compare("skipped", event.get("skipped", list, []), dropped)
        self._compare("fin", event.get("fin", list), [request.asked.rid for request in finished])
        self._compare(
            "out", event.get("out", list), [[request.asked.rid, request.n_out] for request in batch.requests]
        )
        self._compare_pools(event.entry("mem"))

    def _compare_pools(self, logged: Entry) -> None:
        kv, tree = self._scheduler.kv, self._scheduler.kv.tree
        self._compare("avail", logged.get("avail", int), kv.pool.free)
        self._compare("evictable", logged.get("evictable", int), tree.evictable)
        if "protected" in logged.data:
            self._compare("protected", logged.get("protected", int), tree.protected)
        if "swa_avail" in logged.data:
            self._compare("swa_avail", logged.get("swa_avail", int), kv.pool.window_free)
            evictable = kv.remaining_window() - kv.pool.window_free
            self._compare("swa_evictable", logged.get("swa_evictable", int), evictable)
        if "idle" in logged.data:
            self._compare("idle", logged.get("idle", int), self._scheduler.usage().idle_sessions)
        sessions = {
            name: [row.shared, row.length, row.length] for name, row in kv.sessions.named_rows().items()
        }
        self._compare("sess", logged.get("sess", dict, {}), sessions)

    # Comparing.

    def _decides(self, name: str, expected: object, found: object) -> None:
        """Compare a decision: if it differs, all later differences follow from it."""
        if not self._compare(name, expected, found):
            self._apart = True

    def _compare(self, name: str, expected: Any, found: Any, tolerance: float = 0.0) -> bool:
        same = abs(expected - found) <= tolerance if tolerance else expected == found
        if not same:
            step = self._event.data.get("step")
            event = self._event.get("ev", str)
            self._report.differences.append(Difference(self._line, event, step, name, expected, found))
        return bool(same)
