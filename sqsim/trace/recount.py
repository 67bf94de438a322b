# SPDX-License-Identifier: Apache-2.0
"""Change token counts for the simulated model: count the texts again, or multiply.

A recording counts with the tokenizer of the model that was recorded; another one cuts the same text into more or fewer
tokens. `model` estimates each text (`estimate.py`). `scale=X` multiplies every count and keeps a prompt the sum of its
parts: each prompt is X times the recorded one, rounded, unless parts that have to stay at 1 token keep it above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeVar

from sqsim.errors import InputError, TraceError
from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.steps import MARKUP_TOKENS
from sqsim.trace.schema import Answer, Call, Prefix, Question, Reset, Strict, Task, Turn

LEAST, MOST = Fraction(1, 1000), Fraction(1000)
"""Factors outside this range are refused, as typing errors."""

_MOST_TOKENS = 10**9  # sqtrace/1's bound of a count
P = TypeVar("P", Prefix, Question, Reset, Turn, Call, Answer)


@dataclass(frozen=True)
class Recount:
    """Rule for the token counts of a recording."""

    kind: Literal["recorded", "model", "scale"] = "recorded"
    factor: Fraction = Fraction(1)

    @classmethod
    def named(cls, text: str) -> Recount:
        """Read `recorded`, `model` or `scale=X`; InputError for anything else."""
        if text == "recorded":
            return cls()
        if text == "model":
            return cls("model")
        name, _, value = text.partition("=")
        if name != "scale":
            raise InputError(f"tokens {text!r} does not exist; choose recorded, model or scale=X")
        try:
            factor = Fraction(value)
        except (ValueError, ZeroDivisionError):
            factor = Fraction(0)
        if not LEAST <= factor <= MOST:
            raise InputError(f"tokens {text!r}: X is a number from 0.001 to 1000, as in scale=0.67")
        return cls("scale", factor)


class Recounting:
    """Change the counts of tasks as they come; `said` is known at the end."""

    def __init__(self, recount: Recount) -> None:
        self._recount = recount
        self._found: Counter[str] = Counter()
        self._sources: set[str] = set()

    def tasks(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield the tasks with their counts changed. Raises `TraceError` at the end if `model` found no text in any."""
        for task in tasks:
            if self._recount.kind == "scale":
                yield scaled(task, self._recount.factor)
            elif self._recount.kind == "model":
                self._sources.add(task.source.file or task.source.format)
                yield _estimated(task, self._found)
            else:
                yield task
        if self._recount.kind == "model" and not self._found["text"]:
            raise TraceError(
                "no task holds a text, so --tokens model has nothing to count",
                file=", ".join(sorted(self._sources)),
                fix="use --tokens scale=X, the simulated model's tokens for one recorded token",
            )

    @property
    def said(self) -> str | None:
        """Say in words what `model` did; None for the other rules."""
        found = self._found
        if not found["text"]:
            return None
        share = round(100 * found["text"] / (found["text"] + found["kept"]))
        times = found["text"] / max(1, found["recorded"])
        said = f"estimated from text for {share} % of tokens ({times:.2f} times as many as recorded)"
        return f"{said}, as recorded for {100 - share} %, which have no text" if found["kept"] else said


def scaled(task: Task, factor: Fraction) -> Task:
    """Multiply every count of a task by `factor`; a part that has tokens keeps at least one."""
    scale = _Scale(factor, task)
    prefix = scale.part(task.prefix)
    start = scale.mark()
    question = _blocks(task.question, scale) if task.question.hash_ids else scale.part(task.question)
    turns = []
    for turn in task.turns:
        reset = turn.reset
        if reset is not None:
            scale.back_to(start)
            reset = scale.part(reset)
        made = scale.part(turn, apart=() if task.reasoning_kept else ("reasoning",))
        calls = tuple(scale.part(call) for call in turn.calls)
        turns.append(made.model_copy(update={"calls": calls, "reset": reset}))
    answer = None if task.answer is None else scale.part(task.answer)
    aux = task.aux and tuple(
        each.model_copy(update={"output_tokens": scale.alone(each.output_tokens)}) for each in task.aux
    )
    carries = task.carries.model_copy(update={"scale": float(Fraction(str(task.carries.scale)) * factor)})
    return task.model_copy(
        update={
            "prefix": prefix,
            "question": question,
            "turns": tuple(turns),
            "answer": answer,
            "aux": aux,
            "carries": carries,
        }
    )


class _Scale:
    """Multiplier of the parts of a growing context; their sum is the multiplied sum, rounded."""

    def __init__(self, factor: Fraction, task: Task) -> None:
        self._factor = factor
        self._name = task.task_id
        self._exact = Fraction(0)  # what the parts so far should have together
        self._given = 0  # and what they have

    def mark(self) -> tuple[Fraction, int]:
        """Return the context's present position."""
        return self._exact, self._given

    def back_to(self, mark: tuple[Fraction, int]) -> None:
        """Return the context to a mark."""
        self._exact, self._given = mark

    def part(self, part: P, apart: Iterable[str] = ()) -> P:
        """Multiply the counts of a part and remove its token ids; those `apart` are in no later prompt."""
        update: dict[str, int | None] = {}
        for stem, tokens in _counts(part):
            update[f"{stem}tokens"] = self.alone(tokens) if stem.removesuffix("_") in apart else self(tokens)
            if f"{stem}token_ids" in type(part).model_fields:
                update[f"{stem}token_ids"] = None
        return part.model_copy(update=update)

    def __call__(self, tokens: int) -> int:
        """Multiply a part of the context; at least 1 unless it was empty."""
        return self.takes(tokens, max(min(tokens, 1), round(self._exact + tokens * self._factor) - self._given))

    def takes(self, tokens: int, given: int) -> int:
        """Note that a part of the context has a size that was settled elsewhere."""
        self._exact += tokens * self._factor
        self._given += given
        return self._bounded(given)

    def alone(self, tokens: int) -> int:
        """Multiply a count that is in no prompt."""
        return self._bounded(max(min(tokens, 1), round(tokens * self._factor)))

    def _bounded(self, tokens: int) -> int:
        if tokens > _MOST_TOKENS:
            raise TraceError(
                f"task {self._name}: {tokens} tokens in one part", fix="use a smaller --tokens scale=X"
            )
        return tokens


def _blocks(question: Question, scale: _Scale) -> Question:
    """Multiply the blocks of a question that names blocks, so that equal ids stay equal text."""
    ids, size = question.hash_ids or (), question.block_tokens or 1
    whole, rest = divmod(question.tokens, size)
    block = scale.alone(size)
    if rest:
        rest = min(scale.alone(rest), block if len(ids) > whole else block - 1)
    tokens = scale.takes(question.tokens, whole * block + rest)
    return question.model_copy(update={"tokens": tokens, "block_tokens": block, "token_ids": None})


def _counts(part: Strict) -> Iterator[tuple[str, int]]:
    """List the counts of a part: the beginning of the field's name, and the tokens."""
    for name in type(part).model_fields:
        if name == "tokens" or (name.endswith("_tokens") and name != "block_tokens"):
            yield name.removesuffix("tokens"), getattr(part, name)


def _estimated(task: Task, found: Counter[str]) -> Task:
    """Count a task's texts again; parts without text keep their tokens, counted in `found`."""
    before = found["text"]
    prefix = _from_text(task.prefix, found, MARKUP_TOKENS)
    question = task.question
    if not question.hash_ids:
        question = _from_text(question, found, 2 * MARKUP_TOKENS)
    turns = []
    for turn in task.turns:
        messages = len(turn.calls) + bool(turn.template_text) + 1
        made = _from_text(turn, found, MARKUP_TOKENS * messages)
        calls = tuple(_from_text(call, found) for call in turn.calls)
        reset = turn.reset and _from_text(turn.reset, found, 2 * MARKUP_TOKENS)
        turns.append(made.model_copy(update={"calls": calls, "reset": reset}))
    answer = task.answer and _from_text(task.answer, found)
    update = {"prefix": prefix, "question": question, "turns": tuple(turns), "answer": answer}
    if found["text"] > before:
        update["carries"] = task.carries.model_copy(update={"usage": "derived"})
    return task.model_copy(update=update)


_MARKED = {"", "keep_", "template_"}
"""Counts that include the markup of messages, in addition to their text."""


def _from_text(part: P, found: Counter[str], markup: int = 0) -> P:
    """Estimate the counts of a part from its texts; a text has at most one token a byte, the rest is without text."""
    update: dict[str, int | None] = {}
    for stem, tokens in _counts(part):
        text = getattr(part, "text" if stem == "text_" else f"{stem}text")
        if not text:
            found["kept"] += tokens
            continue
        around = markup if stem in _MARKED else 0
        kept = max(0, tokens - around - len(text.encode()))
        found["kept"] += kept
        said = estimate_tokens(text) + around
        found["text"] += said
        found["recorded"] += tokens - kept
        update[f"{stem}tokens"] = said + kept
        update[f"{stem}token_ids"] = None
    return part.model_copy(update=update)
