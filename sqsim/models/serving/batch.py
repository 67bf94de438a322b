# SPDX-License-Identifier: Apache-2.0
"""Outputs of the scheduler: batches, results, usage, and the account of one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sqsim.models.serving.admission import AdmissionTest
from sqsim.models.serving.request import Request

Mode = Literal["extend", "mixed", "decode"]


class PrefillRow(NamedTuple):
    """One request's part of a prefill: `extend` new tokens after `prefix` tokens that have KV."""

    request: Request
    extend: int
    prefix: int


class MacroStep(NamedTuple):
    """The tokens that alike decode steps read and the slots they take; `context` and `window` before the first step."""

    rows: int
    context: int  # sum of the rows' KV lengths; `rows` more every step
    window: int  # the same, each row clipped to the model's window
    widening: int  # rows below the clip: `window` grows by this number every step
    page: int
    crossings: dict[int, int]  # step from 1 -> rows that take a page in it, and again every `page` steps

    def slots(self, steps: int) -> int:
        """Count the slots that the first `steps` steps take."""
        if self.page == 1:
            return steps * self.rows
        taken = [
            rows * ((steps - first) // self.page + 1)
            for first, rows in self.crossings.items()
            if first <= steps
        ]
        return self.page * sum(taken)


@dataclass(slots=True, eq=False)
class Batch:
    """One forward step; `requests` in row order, prefill rows first.

    `decode_context` sums the KV lengths of the decode rows, the new token included, and `decode_window` the same
    with each row clipped to the model's window (0 when it has none).
    """

    mode: Mode
    number: int
    requests: list[Request]
    prefill: list[PrefillRow] = field(default_factory=list)
    decoding: list[Request] = field(default_factory=list)
    decode_context: int = 0
    decode_window: int = 0
    reclaimed: int = 0  # tokens of the leaves evicted in this round
    released_sessions: int = 0  # idle sessions released in this round
    retracted: list[Request] = field(default_factory=list)
    chunked: Request | None = None  # the request whose prefill goes on after this batch
    lengths: list[int] = field(
        default_factory=list
    )  # of the decode rows, the new token included; empty with a `macro_step`
    steps: int = 1  # alike steps that it stands for (fast_forward.py); the sums are those of the first
    before: Batch | None = None  # with several steps: the last but one, whose result is also pending
    macro_step: MacroStep | None = None

    def rows(self) -> list[tuple[str, int, int]]:
        """List (rid, extend, prefix) of every row, as a step log has them."""
        rows = [(request.asked.rid, extend, prefix) for request, extend, prefix in self.prefill]
        return rows + [
            (r.asked.rid, 1, length - 1) for r, length in zip(self.decoding, self.lengths, strict=True)
        ]


class Result(NamedTuple):
    """The result of a batch: requests whose first token came out, and requests that ended."""

    started: list[Request]
    finished: list[Request]


class Usage(NamedTuple):
    """Full-attention slots by holder; the first five sum to the capacity.

    `running` includes locked tree nodes; `swa_used` counts window slots that are neither free nor evictable (SGLang's
    swa_token_usage times the pool).
    """

    running: int
    idle_sessions: int
    aux: int
    tree_evictable: int
    free: int
    swa_used: int

    @property
    def used(self) -> int:
        """Count the slots that are neither free nor evictable."""
        return self.running + self.idle_sessions + self.aux


@dataclass(slots=True)
class Round:
    """The account of one scheduling round, whether it formed a batch or not."""

    tests: list[AdmissionTest] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)  # lengths of the waiting requests re-matched (rule 32)
    evictions: list[list[int]] = field(default_factory=list)  # leaf sizes, per eviction
    retracted: list[Request] | None = None  # None: no retraction was needed
    released_sessions: int = 0
