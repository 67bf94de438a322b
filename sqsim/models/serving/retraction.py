"""Taking running requests back when decode is out of memory, and the new-token ratio this teaches (rule 34)."""

from __future__ import annotations

from typing import NamedTuple

from sqsim.models.serving.kv_cache import KvCache
from sqsim.models.serving.limits import RATIO_FLOOR, RATIO_START, RATIO_STEPS, RETRACT_STEPS, Limits
from sqsim.models.serving.request import Request


class Retraction(NamedTuple):
    """Who goes on (in the order they now run), who goes back to the queue, and who fails for good."""

    kept: list[Request]
    retracted: list[Request]
    failed: Request | None


def retract(kv: KvCache, running: list[Request]) -> Retraction:
    """Take back the requests with the fewest outputs, then the longest prompts, until one more token each fits.

    At least one goes unless it is the only one. The last one left fails when even it does not fit.
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
    """Forget how far its KV had come; its outputs stay, and the token in flight is dropped."""
    request.retractions += 1
    request.retracted = True
    request.prefix = request.extend_end = 0
    request.branch = None
    request.middle_chunks = request.decode_steps = 0


class NewTokenRatio:
    """The share of its remaining output that admission expects a running request to produce.

    Decode steps since the last retraction or idle moment are counted, not subtracted one by one, so that many at once
    give what they give one after the other.
    """

    def __init__(self, limits: Limits) -> None:
        self._start = min(RATIO_START * limits.schedule_conservativeness, 1.0)
        self.floor = min(self._start * RATIO_FLOOR, 1.0)
        self.step = (self._start - self.floor) / RATIO_STEPS
        self.value = self._base = self._start
        self._decays = 0

    def decay(self, steps: int = 1) -> None:
        """Decode steps went by without a retraction."""
        self._decays += steps
        self.value = max(self._base - self._decays * self.step, self.floor)

    def learn(self, kept: list[Request]) -> None:
        """A retraction happened: expect what the kept requests have shown so far."""
        said = sum(request.n_out for request in kept) + RETRACT_STEPS * len(kept)
        self._set(min(1.0, said / (sum(request.max_new_tokens for request in kept) + 1)))

    def reset(self) -> None:
        """The scheduler became idle (rule 3)."""
        self._set(self._start)

    def _set(self, value: float) -> None:
        self.value = self._base = value
        self._decays = 0
