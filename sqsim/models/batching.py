"""The scheduler: one round forms one batch (RULES.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sqsim.models.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds the scheduler; sizes in tokens, defaults as SGLang 0.5.23 has them."""

    kv_capacity: int
    swa_capacity: int | None = None
    swa_window: int | None = None  # the model's sliding_window - 1
    page_size: int = 1
    max_running: int = 256
    chunked_prefill: int = 8192
    max_prefill_tokens: int = 16384
    schedule_conservativeness: float = 1.0
    context_length: int = 131072
    mixed_chunk: bool = False
    schedule_policy: Literal["fcfs", "lpm"] = "fcfs"
    overlap: bool = True
    release_idle_sessions: bool = False
    refresh_calls: int = 0


class PrefillRow(NamedTuple):
    """One request's part of a prefill: `extend` new tokens behind `prefix` tokens that have KV."""

    request: Request
    extend: int
    prefix: int


@dataclass(slots=True)
class Batch:
    """One forward step; `requests` in row order."""

    mode: Literal["extend", "mixed", "decode"]
    number: int
    requests: list[Request] = field(default_factory=list)
    prefill: list[PrefillRow] = field(default_factory=list)
    decoding: list[Request] = field(default_factory=list)
    decode_context: int = 0
    decode_window: int = 0
    reclaimed: int = 0
    released_sessions: int = 0
    retracted: list[Request] = field(default_factory=list)


class Result(NamedTuple):
    """What a processed batch brought: first tokens and ends."""

    started: list[Request]
    finished: list[Request]


class Usage(NamedTuple):
    """Full-attention slots by holder; the first five sum to the capacity."""

    running: int
    idle_sessions: int
    aux: int
    tree_evictable: int
    free: int
    swa_used: int


class Scheduler:
    """Forms batches as SGLang 0.5.23 does."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.ratio = 0.0

    def submit(self, request: Request) -> None:
        raise NotImplementedError

    def abort(self, rid: str) -> None:
        raise NotImplementedError

    def close_session(self, session: str) -> None:
        raise NotImplementedError

    def drop(self, session: str, spans: Sequence[tuple[int, int]]) -> int:
        raise NotImplementedError

    def has_session(self, session: str) -> bool:
        raise NotImplementedError

    def next_batch(self) -> Batch | None:
        raise NotImplementedError

    def process_result(self, batch: Batch) -> Result:
        raise NotImplementedError

    def became_idle(self) -> None:
        raise NotImplementedError

    def usage(self) -> Usage:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError
