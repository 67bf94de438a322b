# SPDX-License-Identifier: Apache-2.0
"""The declared model of an aux thread's decision: an independent Bernoulli for every open cursor (SPEC.md, "Aux threads").

A simulation runs no language model, so this model replaces one. It judges by what the task will still need. Only this
file, `oracle.py` and `metrics.py` may read references (law 4).
"""

from __future__ import annotations

from collections.abc import Iterable

from sqsim.base.random_streams import uniform
from sqsim.policies.base import Decision, Script
from sqsim.trace.references import last_uses
from sqsim.trace.schema import Task

_SPREAD = 0.12
"""Figure 7 of the paper shows outputs of 110-140 tokens, i.e. 125 +- 12 %; drawn uniformly (assumed)."""


class DecisionModel:
    """A model that names an expired cursor with probability `recall` and a live one with probability `false_rate`.

    *Expired at t* means that no main step from t on refers to the cursor (METHOD.md, "Words"). Random numbers are
    keyed by task, aux index and cursor, so they do not depend on when the thread runs.
    """

    def __init__(
        self,
        task: Task,
        name: str,
        *,
        seed: int,
        recall: float,
        false_rate: float,
        aux_tokens: int,
        aux_max_new_tokens: int,
    ) -> None:
        self._last_use = last_uses(task)
        self._name = name
        self._seed = seed
        self._recall = recall
        self._false_rate = false_rate
        self._tokens = aux_tokens
        self._limit = aux_max_new_tokens

    def decide(self, index: int, turn: int, open_cursors: Iterable[int]) -> Script:
        """Script aux thread `index`, forked before main step `turn`, over the cursors open at its fork.

        An output longer than the limit is cut off before its list is complete, so it names nothing.
        """
        draw = uniform(self._seed, "aux_tokens", self._name, index)
        length = max(1, round(self._tokens * (1 - _SPREAD + 2 * _SPREAD * draw)))
        if length > self._limit:
            return Script(self._limit, Decision(malformed=True))
        named = tuple(
            cursor
            for cursor in open_cursors
            if uniform(self._seed, "aux_names", self._name, index, cursor)
            < (self._recall if self._last_use[cursor] < turn else self._false_rate)
        )
        return Script(length, Decision(named))
