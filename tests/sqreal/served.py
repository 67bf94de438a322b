# SPDX-License-Identifier: Apache-2.0
"""A real server with sessions in place, and what it is held against."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

from sqreal.replay.schedule import await_idle
from sqreal.server.server import Server
from tests.sqreal.reference_model import ReferenceModel

POOL = 2048


@dataclass
class Served:
    """A server, and what it is held against."""

    url: str
    model: ReferenceModel
    page: int
    log: Path
    server: Server
    pool: int = POOL
    clients: int = 0  # that a test lets loose on it
    scored: bool = False  # hold log-probabilities of forced tokens against the reference's, not greedy tokens
    differences: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list), repr=False)
    """Of log-probabilities to the reference's: `whole`, of turns before a session's first drop, `cut`, behind it, `fork`, and
    `blind`, of `cut` ones to a reference that has not noticed the drops."""
    baseline: list[float] = field(
        default_factory=list, repr=False
    )  # of them, those of sessions that dropped nothing
    names: Any = field(default_factory=count)
    done: Counter = field(default_factory=Counter)

    @property
    def keeps_last(self) -> bool:
        """Does a turn keep the KV of an answer's last token? 0.5.16 does, if the step behind the end was begun already."""
        return self.server.info.version == "0.5.16"

    async def kept(self, session: str, rid: str) -> int:
        """Tokens of KV that a session holds as a turn of it ends, by the step log."""
        for _ in range(500):
            events = [
                json.loads(line)
                for line in self.log.read_text().splitlines()
                if line.endswith("}") and rid in line
            ]
            if ended := [event for event in events if event["ev"] == "result" and rid in event["fin"]]:
                return ended[-1]["mem"]["sess"][session][1]
            await asyncio.sleep(0.02)  # the log has it a little after the answer
        raise AssertionError(f"{self.log}: tells of no end of {rid}")

    def name(self) -> str:
        """Of no other request: two seconds behind a streamed answer SGLang aborts its id once more."""
        return f"x{next(self.names)}/"

    def last_idle(self) -> dict[str, Any]:
        await_idle(self.log)
        events = [json.loads(line) for line in self.log.read_text().splitlines()]
        return next(event for event in reversed(events) if event["ev"] == "idle")["mem"]

    def check_pools(self) -> None:
        """An idle server without sessions holds nothing but its tree, which nothing locks: free and evictable are all."""
        self.server.check()
        memory = self.last_idle()
        assert memory["avail"] + memory["evictable"] == self.pool
        if self.model.window:
            assert memory["swa_avail"] + memory["swa_evictable"] == self.server.info.swa_capacity
        assert memory["protected"] == 0
        assert "sess" not in memory

    def __str__(self) -> str:
        said = str(dict(self.done))
        for kind, off in self.differences.items():
            if off:
                worst = sorted(off)
                said += (
                    f"; {len(off)} log-probabilities, {kind}: off by {fmean(off):.2g} on average, 99 % within "
                    f"{worst[int(0.99 * len(off))]:.2g}, all within {worst[-1]:.2g}"
                )
        return said
