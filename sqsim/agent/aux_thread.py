"""The auxiliary thread: what it reads, what it generates, and the declared model of its decision.

The thread reads the main context up to its fork, then the trigger phrase, and generates a reasoning text and
`{"del_cursors": [...]}` (METHOD.md, Algorithm 1). In a simulation nobody writes that text, so a decision model
stands for the model's output: an independent Bernoulli for every open cursor (SPEC.md, "Aux threads"). Like
the model it stands for, it judges by what the task will still need: this file, `policies/oracle.py` and
`metrics.py` are all that may read references.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqsim.draws import uniform
from sqsim.trace.references import last_uses
from sqsim.trace.schema import Task

TRIGGER_TOKENS = 12
"""`** Memory management mode **` with its chat-template tokens. Assumed: no recording of the phrase is public."""

_SPREAD = 0.12
"""Figure 7 of the paper shows outputs of 110-140 tokens, i.e. 125 +- 12 %; drawn uniformly (assumed)."""


class Decision(NamedTuple):
    """What one aux thread will generate: its length, and the cursors it names (empty when malformed)."""

    output_tokens: int
    named: tuple[int, ...]
    malformed: bool


class DecisionModel:
    """Names an expired cursor with probability `recall` and a live one with probability `false_rate`.

    *Expired at t* means that no main step from t on refers to the cursor (METHOD.md, "Words"). Draws are keyed
    by task, aux index and cursor, so they do not depend on when the thread runs.
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

    def decide(self, index: int, turn: int, open_cursors: Iterable[int]) -> Decision:
        """Decide for aux thread `index`, forked before main step `turn`, over the cursors open at its fork.

        An output longer than the limit is cut off before its list is complete, so it names nothing.
        """
        draw = uniform(self._seed, "aux_tokens", self._name, index)
        length = max(1, round(self._tokens * (1 - _SPREAD + 2 * _SPREAD * draw)))
        if length > self._limit:
            return Decision(self._limit, (), malformed=True)
        named = tuple(
            cursor
            for cursor in open_cursors
            if uniform(self._seed, "aux_names", self._name, index, cursor)
            < (self._recall if self._last_use[cursor] < turn else self._false_rate)
        )
        return Decision(length, named, malformed=False)
