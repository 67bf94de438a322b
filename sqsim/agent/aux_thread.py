"""The auxiliary thread: what it reads, what it generates, how that is read, and the declared model of its decision.

The thread reads the main context up to its fork, then the trigger phrase, and generates a reasoning text and
`{"del_cursors": [...]}` (METHOD.md, Algorithm 1). A real server's model may write that text itself; `read_decision`
reads it. In a simulation nobody writes it, so a decision model stands for the model's output: an independent
Bernoulli for every open cursor (SPEC.md, "Aux threads"). Like the model it stands for, it judges by what the task
will still need: this file, `policies/oracle.py` and `metrics.py` are all that may read references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from sqsim.draws import uniform
from sqsim.trace.references import last_uses
from sqsim.trace.schema import Task

TRIGGER = "** Memory management mode **"
"""The phrase that asks the model for a decision (arXiv 2602.22603)."""

TRIGGER_TOKENS = 12
"""The phrase with its chat-template tokens. Assumed: no recording of it is public; a live run asks its tokenizer."""

NO_CURSOR = 10**18
"""What stands for a named number that is larger still: a cursor that no task has, and one that a record can hold."""

_SPREAD = 0.12
"""Figure 7 of the paper shows outputs of 110-140 tokens, i.e. 125 +- 12 %; drawn uniformly (assumed)."""


_KEY = "del_cursors"
_NUMBER = "(?:0|[1-9][0-9]*)"  # JSON's; not what Python takes for digits
_LIST = re.compile(
    rf"[ \t\r\n]*:[ \t\r\n]*\[([ \t\r\n]*|[ \t\r\n]*{_NUMBER}(?:[ \t\r\n]*,[ \t\r\n]*{_NUMBER})*[ \t\r\n]*)\][ \t\r\n]*\}}"
)


class Decision(NamedTuple):
    """The cursors that an aux thread names, in its order and each once; none where its output was malformed."""

    named: tuple[int, ...] = ()
    malformed: bool = False


class Script(NamedTuple):
    """What an aux thread will generate where its output is scripted."""

    output_tokens: int
    decision: Decision


def read_decision(text: str) -> Decision:
    """Read what a model wrote: any text that ends its talk of `del_cursors` with `{"del_cursors": [0, 3]}`.

    The paper prints the key without quotes, so both are taken (METHOD.md, Algorithm 1). The last mention of the key
    counts, whatever follows it: a list that was cut off must not let an earlier, withdrawn one stand. An object with
    other keys, and items that are no JSON whole numbers of 0 or more, are malformed: what cannot be read clearly
    deletes nothing.
    """
    head, key, tail = text.rpartition(_KEY)
    if not key:
        return Decision(malformed=True)
    if head.endswith('"') and tail.startswith('"'):
        head, tail = head[:-1], tail[1:]
    found = _LIST.match(tail)
    if found is None or not head.rstrip(" \t\r\n").endswith("{"):
        return Decision(malformed=True)
    numbers = re.findall(_NUMBER, found[1])
    # Python refuses to read thousands of digits; no task has so many cursors either.
    return Decision(tuple(dict.fromkeys(int(n) if len(n) <= 18 else NO_CURSOR for n in numbers)))


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

    def decide(self, index: int, turn: int, open_cursors: Iterable[int]) -> Script:
        """Decide for aux thread `index`, forked before main step `turn`, over the cursors open at its fork.

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
