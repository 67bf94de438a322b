# SPDX-License-Identifier: Apache-2.0
"""Token ids for runs of segments, so that two prompts share exactly the prefix that their runs share.

The id of a token is a function of its segment and its index (SPEC.md, "sqtrace/1"); a recorded id is used where the
trace has it. The vocabulary is divided into three kinds of ids; ids of different kinds never match:

* *ends*: the last token of an output, which stops its request and so must not occur in it earlier;
* *firsts*: the first token of any other segment. Two contexts part where they continue with different segments:
  at those forks (nodes of the tree of all sequences so far) a first id is never the one of a sibling, and it is
  its own within its task as long as the vocabulary lasts, because an eviction makes new neighbours within a task;
* *inner* ids: all other tokens, drawn by a keyed hash.

Ids 0 to 2 (padding, begin, end) and the top of the vocabulary, where models keep their special tokens, are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sqsim.base.random_streams import uniform
from sqsim.errors import InputError
from sqsim.models.serving.tokens import Run, Tokens

RESERVED = 3
"""Ids 0, 1 and 2: padding, begin and end of a text."""
_SPECIAL_SHARE = 16
"""Fraction of ids reserved at the top, 1 in this many: more than the special tokens of gpt-oss (1,090 of 201,088), Llama 3 and Qwen 3."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of splitmix64."""

_Words = npt.NDArray[np.uint64]


class _Kind(NamedTuple):
    """The ids `[start, stop)`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class TokenIds:
    """Token ids of one run. The same calls in the same order give the same ids."""

    def __init__(
        self,
        vocabulary: int,
        seed: int,
        recorded: Mapping[int, Sequence[int]] | None = None,
        everywhere: Sequence[int] = (),
    ) -> None:
        """Take the ids of recorded segments, and `everywhere`, segments that may follow any other in any task."""
        self.vocabulary = vocabulary
        self.replaced = 0
        """Recorded ids that could not be used: the last of an output that holds it earlier too."""
        usable = vocabulary - vocabulary // _SPECIAL_SHARE - RESERVED
        if usable < 16:
            raise InputError(
                f"a vocabulary of {vocabulary} ids is too small to tell tokens apart; use 32 or more"
            )
        quarter = RESERVED + usable // 4
        self._ends = _Kind(RESERVED, quarter)
        self._inner = _Kind(quarter, quarter + usable // 4)
        self._firsts = _Kind(quarter + usable // 4, RESERVED + usable)
        self._seed = seed
        self._recorded = recorded if recorded is not None else {}
        self._first: dict[int, int] = {}
        self._last: dict[int, tuple[int, int]] = {}  # of segments that end an output: their last index, its id
        self._nodes: dict[tuple[int, Run], int] = {}
        self._children: dict[int, set[int]] = {}  # ids that follow a node of the tree
        self._tasks: dict[int, set[int]] = {}  # ids that a task's segments start with
        self._everywhere: set[int] = set()
        for segment in everywhere:
            if segment in self._recorded:
                self._everywhere.add(self._recorded[segment][0])
            else:
                self._first[segment] = self._choose(segment, self._firsts, set(), set())
                self._everywhere.add(self._first[segment])

    @property
    def derived(self) -> int:
        """Number of segments so far whose ids are derived and represent no text."""
        return len(self._first)

    def call(self, task: int, prompt: Tokens, output: Tokens) -> tuple[list[int], list[int]]:
        """Return the ids of a request of task number `task`: its prompt and its output.

        InputError: a recorded id is outside the vocabulary, or the vocabulary is too small to tell siblings apart.
        """
        if output and output[-1].segment not in self._recorded:
            segment, _, stop = output[-1]
            self._last.setdefault(segment, (stop - 1, self._drawn(segment, "last_token", self._ends)))
        node = 0
        for run in (*prompt, *output):
            node = self._enter(task, node, run)
        said = self.ids(output)
        if said and said[-1] in said[:-1]:  # only a recording can cause this
            segment, _, stop = output[-1]
            free = (token for token in range(RESERVED, self.vocabulary) if token not in said)
            said[-1] = next(free, -1)
            if said[-1] < 0:
                raise InputError(f"an output holds all of the {self.vocabulary} ids: no id is left to end it")
            self._last[segment] = (stop - 1, said[-1])
            self.replaced += 1
        return self.ids(prompt), said

    def ids(self, tokens: Tokens) -> list[int]:
        """Return the ids of a sequence whose segments all appeared in an earlier call."""
        found: list[int] = []
        for run in tokens:
            found += self._of(run)
        return found

    def _of(self, run: Run) -> list[int]:
        segment, start, stop = run
        if segment in self._recorded:
            found = list(self._recorded[segment][start:stop])
        else:
            found = self._inner_ids(segment, start, stop)
            if start == 0:
                found[0] = self._first[segment]
        index, token = self._last.get(segment, (-1, -1))
        if start <= index < stop and (index > 0 or segment in self._recorded):
            found[index - start] = token
        return found

    def _inner_ids(self, segment: int, start: int, stop: int) -> list[int]:
        key = np.uint64(int(uniform(self._seed, "tokens", segment) * 2**53))
        with np.errstate(over="ignore"):  # wraps modulo 2**64 by design
            words = _mixed(np.arange(start, stop, dtype=np.uint64) * _GOLDEN + key)
        chosen: list[int] = (words % np.uint64(self._inner.size) + np.uint64(self._inner.start)).tolist()
        return chosen

    def _enter(self, task: int, node: int, run: Run) -> int:
        """Walk one run down the tree of all sequences. A segment gets its first id where it first appears."""
        known = self._nodes.get((node, run))
        if known is not None:
            return known
        if run.segment in self._recorded:
            self._check(self._recorded[run.segment])
        elif run.start == 0:
            siblings, mine = self._children.setdefault(node, set()), self._tasks.setdefault(task, set())
            if run.segment not in self._first:
                alone = self._last.get(run.segment, (-1, -1))[0] == 0
                self._first[run.segment] = self._choose(
                    run.segment, self._ends if alone else self._firsts, siblings, mine
                )
            mine.add(self._first[run.segment])
            siblings.add(self._first[run.segment])
        child = self._nodes[node, run] = len(self._nodes) + 1
        return child

    def _choose(self, segment: int, kind: _Kind, siblings: set[int], task: set[int]) -> int:
        """Choose a first id: not a sibling's and, while there is another, not one of its task."""
        drawn = self._drawn(segment, "first_token", kind)
        for taken in (siblings | task | self._everywhere, siblings | self._everywhere):
            for token in chain(range(drawn, kind.stop), range(kind.start, drawn)):
                if token not in taken:
                    return token
        raise InputError(
            f"{len(siblings)} texts follow the same prefix, a vocabulary of {self.vocabulary} ids cannot tell them apart; "
            "run fewer tasks, or use a model with a larger vocabulary"
        )

    def _drawn(self, segment: int, purpose: str, kind: _Kind) -> int:
        return kind.start + int(uniform(self._seed, purpose, segment) * kind.size)

    def _check(self, recorded: Sequence[int]) -> None:
        wrong = next((token for token in recorded if token >= self.vocabulary), None)
        if wrong is not None:
            raise InputError(
                f"the trace holds token id {wrong}, the model's vocabulary has {self.vocabulary}; "
                "use the model that the trace was recorded with, or a trace without token ids"
            )


def _mixed(words: _Words) -> _Words:
    """The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every bit in depends on every bit out."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
