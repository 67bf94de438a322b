# SPDX-License-Identifier: Apache-2.0
"""Retraction of running requests when decode is out of memory, and the new-token ratio that follows (rule 34)."""

from __future__ import annotations

from typing import NamedTuple

from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.limits import RATIO_FLOOR, RATIO_START, RATIO_STEPS, RETRACT_STEPS, Limits
from sqsim.models.serving.request import Request


class Retraction(NamedTuple):
    """The requests that keep running (in their new order), those that return to the queue, and one that fails."""

    kept: list[Request]
    retracted: list[Request]
    failed: Request | None


def retract(kv: KvCache, running: list[Request]) -> Retraction:
    """Retract the requests with the fewest outputs, then the longest prompts, until one more token each fits.

    At least one request is retracted unless only one runs. The last request fails when even it does not fit.
    """
    kept = sorted(running, key=lambda request: (request.n_out, -request.n_in), reverse=True)
    retracted: list[Request] = []
    while not retracted or not kv.room_for_decode(kept):
        if len(kept) == 1:
            break
        request = kept.pop()
        kv.retract(request)
        _reset(request)
        kv.make_room(len(kept) * RETRACT_STEPS)
        retracted.append(request)
    failed = None
    if len(kept) == 1 and not kv.room_for_decode(kept):
        failed = kept.pop()
        failed.finish = "out_of_memory"
        kv.discard(failed)
        _reset(failed)
    return Retraction(kept, retracted, failed)


def _reset(request: Request) -> None:
    """Reset the progress of a request's KV; its outputs stay, and the token in flight is dropped."""
    request.retractions += 1
    request.retracted = True
    request.prefix = request.extend_end = 0
    request.branch = None
    request.middle_chunks = request.decode_steps = 0


class NewTokenRatio:
    """The share of its remaining output that admission expects a running request to produce.

    Decode steps since the last retraction or idle moment are counted, not subtracted one by one, so that a macro-step
    gives the same value as its steps one by one.
    """

    def __init__(self, limits: Limits) -> None:
        self._start = min(RATIO_START * limits.schedule_conservativeness, 1.0)
        self.floor = min(self._start * RATIO_FLOOR, 1.0)
        self.step = (self._start - self.floor) / RATIO_STEPS
        self.value = self._base = self._start
        self._decays = 0

    def decay(self, steps: int = 1) -> None:
        """Lower the ratio for decode steps without a retraction."""
        self._decays += steps
        self.value = max(self._base - self._decays * self.step, self.floor)

    def learn(self, kept: list[Request]) -> None:
        """Set the ratio after a retraction to the share that the kept requests have produced so far."""
        produced = sum(request.n_out for request in kept) + RETRACT_STEPS * len(kept)
        self._set(min(1.0, produced / (sum(request.max_new_tokens for request in kept) + 1)))

    def reset(self) -> None:
        """Return to the start value, as the scheduler became idle (rule 3)."""
        self._set(self._start)

    def _set(self, value: float) -> None:
        self.value = self._base = value
        self._decays = 0
