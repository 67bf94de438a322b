# SPDX-License-Identifier: Apache-2.0
"""Limits of the scheduler: pool sizes, and the launch options that SGLang 0.5.23 schedules by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CLIP_NEW_TOKENS = 4096  # admission never reserves more output than this for one request (rules 11-13)
RETRACT_STEPS = 20  # a retraction makes room for this many decode steps of the kept requests (rule 34)
RATIO_START, RATIO_FLOOR, RATIO_STEPS = 0.7, 0.14, 600  # new_token_ratio (rule 34)
SLIDE_INTERVAL = 128  # a decoding request frees window slots once this many have slid out (rule 39)
REFRESH_INTERVAL = 32  # admission passes between two re-matchings of the waiting queue (rule 32)
QUEUE_MATCH_MAX = 128  # waiting requests re-matched at most; a longer queue turns lpm into fcfs


@dataclass(frozen=True, slots=True)
class Limits:
    """Pool sizes in tokens and launch options. `refresh_calls`: phase of the 32-pass counter at the start (rule 32).

    A hybrid pool has `swa_capacity` window slots in addition to the full-attention ones and needs `swa_window`. A window
    without `swa_capacity` means that every layer keeps every token (`swa_pool: off`): only the attention reads are
    clipped. `release_idle_sessions` turns on the additions of our plugin to SGLang's sessions (session.py).
    """

    kv_capacity: int
    swa_capacity: int | None = None
    swa_window: int | None = None  # the model's sliding_window - 1: 127 for gpt-oss
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

    def __post_init__(self) -> None:
        for name in ("kv_capacity", "page_size", "max_running", "chunked_prefill", "max_prefill_tokens"):
            value = getattr(self, name)
            assert value > 0, f"Limits.{name} is {value}; it must be positive"
        assert self.kv_capacity % self.page_size == 0, (
            f"Limits.kv_capacity {self.kv_capacity} is no multiple of page_size {self.page_size}"
        )
        if self.swa_capacity is not None:
            assert self.swa_window is not None, "Limits.swa_capacity needs swa_window"
            assert self.swa_capacity % self.page_size == 0, (
                f"Limits.swa_capacity {self.swa_capacity} is no multiple of page_size {self.page_size}"
            )

    def room(self, n_in: int, shift: int = 0) -> int:
        """Compute the longest output that a prompt of `n_in` tokens can have, alone on the server (rule 13).

        `shift`: tokens dropped in place before the prompt; they count towards the context length, not in the pool.
        """
        whole_pages = -(-n_in // self.page_size) * self.page_size
        return min(
            min(self.context_length - shift, self.kv_capacity) - 1 - n_in - 1,
            self.kv_capacity - whole_pages - self.page_size - 1,
        )
