# SPDX-License-Identifier: Apache-2.0
"""Accounts from the step log: the cost of each request, and the engine table.

The events are those of the recorded schedules (tests/data/sglang-schedules/README.md), with times of the machine's
monotonic clock as the plugin writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqsim.agent.served import Served
from sqsim.record.schema import ENGINE, Rows
from sqsim.scenario.agents import is_aux

Event = Mapping[str, Any]

_MODES = {"extend": "prefill", "mixed": "mixed", "decode": "decode"}


def events(log: Path, t0_s: float) -> Iterator[Event]:
    """Read the events from `t0_s` on (earlier ones are warm-up). A last line that was cut short is left out."""
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            event: Event = json.loads(line)
            if _time(event) >= t0_s:
                yield event


def _time(event: Event) -> float:
    return float(event["t"] if "t" in event else event.get("t_sched", event.get("t0")))


@dataclass(slots=True)
class _Account:
    """Account of one request, as the scheduler saw it."""

    admit_s: float | None = None
    computed_tokens: int = 0
    prefill_chunks: int = 0
    retractions: int = 0
    resident_tokens: int | None = None
    prefilled: bool = False


@dataclass(slots=True)
class _Step:
    """Engine row whose end is not known yet."""

    t0_s: float
    columns: dict[str, Any]
    used: int


@dataclass(slots=True)
class Accounting:
    """Reader of one log: `accounts` by request, and the engine table, whose times are seconds from `t0_s`.

    A step's row lasts until the next step starts or the engine has nothing left to do; so the rows and the intervals
    without work between them (mode idle) cover the run, and time-weighted means need no other weights.
    """

    kv_capacity: int
    swa_capacity: int | None
    t0_s: float
    accounts: dict[str, _Account] = field(default_factory=dict)
    engine: Rows = field(default_factory=lambda: Rows(ENGINE))
    _aux: dict[str, int] = field(
        default_factory=dict
    )  # KV that a running aux thread holds and the tree does not
    _open: _Step | None = None
    _last_s: float = 0.0

    def read(self, found: Iterable[Event], end_s: float) -> None:
        """Read all events of a run that ended at `end_s`, in seconds from `t0_s`."""
        for event in found:
            kind = event["ev"]
            if kind == "step":
                self._step(event)
            elif kind == "idle":
                self._idle(event)
            elif kind == "result":
                self._last_s = event["t1"] - self.t0_s
            for row in event.get("release", ()):
                self._release(row)
        if self._open is not None:
            self._close(max(end_s, self._last_s))

    def fill(self, rid: str, served: Served) -> None:
        """Complete a request's row from its account in the log."""
        account = self.accounts.get(rid)
        if account is None:
            return
        served.admit_s = None if account.admit_s is None else account.admit_s - self.t0_s
        served.computed_tokens = account.computed_tokens
        served.prefill_chunks = account.prefill_chunks
        served.retractions = account.retractions
        if account.resident_tokens is not None:
            served.resident_tokens = account.resident_tokens

    def _step(self, event: Event) -> None:
        for rid, extend, _, length, n_out, n_in, _, allocated, owned in event["reqs"]:
            account = self.accounts.setdefault(rid, _Account())
            if is_aux(rid):
                self._aux[rid] = allocated - owned
            if event["mode"] == "extend" or (event["mode"] == "mixed" and not account.prefilled):
                account.admit_s = event["t0"] if account.admit_s is None else account.admit_s
                account.computed_tokens += extend
                account.prefill_chunks += 1
                account.prefilled = length >= n_in + n_out
        retracted = [rid for retraction in event.get("retract", ()) for rid in retraction["retracted"]]
        for rid in retracted:
            account = self.accounts[rid]
            account.retractions += 1
            account.prefilled = False
            self._aux.pop(rid, None)
        self._begin(
            event["t0"] - self.t0_s,
            event["post"],
            mode=_MODES[event["mode"]],
            steps=1,
            requests=event["bs"],
            new_tokens=event["tokens"],
            context_tokens=sum(row[3] for row in event["reqs"]),
            running=len(event["run"]),
            waiting=event["n_wait"],
            retracted=len(retracted),
            reclaimed_tokens=sum(sum(eviction["leaves"]) for eviction in event.get("evict", ())),
            released_sessions=len(event.get("released", ())),
            new_token_ratio=event["ratio"],
        )

    def _idle(self, event: Event) -> None:
        self._begin(
            event["t"] - self.t0_s,
            event["mem"],
            mode="idle",
            steps=0,
            requests=0,
            new_tokens=0,
            context_tokens=0,
            running=0,
            waiting=0,
            retracted=0,
            reclaimed_tokens=0,
            released_sessions=0,
            new_token_ratio=event["ratio"],
        )

    def _begin(self, t0_s: float, pools: Mapping[str, int], **columns: Any) -> None:
        self._close(t0_s)
        free, evictable = pools["avail"], pools["evictable"]
        used, aux = self.kv_capacity - free - evictable, sum(self._aux.values())
        idle = pools.get("idle", 0)
        columns |= {
            "kv_running": used - aux - idle,
            "kv_idle_sessions": idle,
            "kv_aux": aux,
            "kv_tree_evictable": evictable,
            "kv_free": free,
            "swa_used": None
            if self.swa_capacity is None
            else self.swa_capacity - pools["swa_avail"] - pools["swa_evictable"],
        }
        self._open = _Step(t0_s, columns, used)

    def _close(self, t1_s: float) -> None:
        step, self._open = self._open, None
        if step is not None and (t1_s > step.t0_s or step.columns["steps"]):
            self.engine.append(t0_s=step.t0_s, t1_s=t1_s, kv_used_mean=float(step.used), **step.columns)

    def _release(self, row: Mapping[str, Any]) -> None:
        self._aux.pop(row["rid"], None)
        if row["finished"]:
            self.accounts.setdefault(row["rid"], _Account()).resident_tokens = row["committed"]
