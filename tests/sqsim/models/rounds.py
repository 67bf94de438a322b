# SPDX-License-Identifier: Apache-2.0
"""Builders and a driver for scheduler tests: an engine without a clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from sqsim.models.serving.request import Asked, Request
from sqsim.models.serving.scheduler import Batch, Limits, Scheduler
from sqsim.models.serving.tokens import Tokens, concat, whole

_SEGMENTS = itertools.count(1)


def fresh(tokens: int) -> Tokens:
    """Tokens that occur nowhere else."""
    return whole(next(_SEGMENTS), tokens)


def request(rid: str, prompt: Tokens | int, says: int = 5, cap: int | None = None, **more) -> Request:
    """Says `says` tokens; ends by length unless a larger cap is given."""
    tokens = fresh(prompt) if isinstance(prompt, int) else prompt
    return Request(Asked(rid, tokens, fresh(says), says if cap is None else cap, **more))


def follow_up(before: Request, tokens: int) -> Tokens:
    """The context of the turn after this one, `tokens` tokens of tool response later."""
    return concat(before.asked.prompt, before.asked.output, fresh(tokens))


class Server:
    """Runs a scheduler round by round as an engine would, auditing after every event."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.batches: list[Batch] = []
        self.ended: list[Request] = []
        self._pending: Batch | None = None

    def submit(self, *requests: Request) -> None:
        for item in requests:
            self.scheduler.submit(item)
            self.scheduler.check()

    def round(self) -> bool:
        """One iteration of the event loop; False when nothing happened."""
        scheduler = self.scheduler
        batch = scheduler.next_batch()
        scheduler.check()
        usage = scheduler.usage()
        assert sum(usage[:5]) == scheduler.limits.kv_capacity
        assert min(usage) >= 0
        if batch is not None:
            self.batches.append(batch)
        done = self._pending if scheduler.limits.overlap else batch
        self._pending = batch if scheduler.limits.overlap else None
        if done is not None:
            self.ended += scheduler.process_result(done).finished
            scheduler.check()
        self.ended += scheduler.ended
        scheduler.ended.clear()
        return batch is not None or done is not None

    def run(self, rounds: int = 20_000, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing happens any more."""
        for _ in range(rounds):
            if until() or not self.round():
                return
        raise AssertionError(f"still busy after {rounds} rounds")

    def rows(self) -> list[list[tuple[str, int, int]]]:
        return [batch.rows() for batch in self.batches]


def serve(*requests: Request, **limits) -> Server:
    """Submit all at once and run to the end."""
    server = Server(Scheduler(Limits(**limits)))
    server.submit(*requests)
    server.run()
    return server
