# SPDX-License-Identifier: Apache-2.0
"""Schema sqtrace/1, one task a line. `traces/README.md` documents every field; SPEC.md is the contract.

Every `*_tokens` is a count. Next to it a trace may carry the `*_text` and the `*_token_ids` themselves.
Times are seconds. A *turn* is one model call that calls tools; the `answer` is the last model call.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = "sqtrace/1"

Carried = Literal["recorded", "derived", "synthesised", "absent"]
"""How a trace came by a kind of information."""

KINDS = ("text", "timing", "usage", "references")
"""Kinds of information that a trace carries."""

# The bounds are far above anything real: they turn a wrong unit or a corrupted number into an error here.
Tokens = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0, le=10**9)]
TokenIds = tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...]
HashId = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]


class Strict(BaseModel):
    """Base of every part: unknown fields are errors, values are not converted, and objects are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(Strict):
    """File that a task was imported from; the licence travels with it."""

    format: str
    file: str | None = None
    sha256: str | None = None
    licence: str | None = None


class Carries(Strict):
    """Origin of each kind of information. `scale`: the factor by which token counts were multiplied since."""

    text: Carried = "absent"
    timing: Carried = "absent"
    usage: Carried = "absent"
    references: Carried = "absent"
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    def label(self, kind: str) -> str:
        """Describe the origin of one kind: `recorded`, or `recorded, scaled by 0.67` for the usage."""
        how: str = getattr(self, kind)
        return f"{how}, scaled by {self.scale:g}" if kind == "usage" and self.scale != 1 else how


class Parent(Strict):
    """Task and turn that started this sub-agent."""

    task_id: str
    turn: Index


class Spawn(Strict):
    """Start of a sub-agent with the tools of the parent's `turn`; `join_turn`'s main step waits for its end."""

    turn: Index
    join_turn: Annotated[int, Field(ge=1, le=10**9)]


class Prefix(Strict):
    """System prompt and tool definitions; tasks with the same id share these tokens."""

    id: str
    tokens: Tokens
    text: str | None = None
    token_ids: TokenIds | None = None


class Question(Strict):
    """Beginning of the task, after the prefix. `hash_ids` (one a block of `block_tokens`) name shared blocks."""

    tokens: Tokens
    text: str | None = None
    token_ids: TokenIds | None = None
    hash_ids: tuple[HashId, ...] | None = None
    block_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None


class Call(Strict):
    """One tool call and its response. A failed call has an error and no cursor; its text still enters the context."""

    tool: str
    call_tokens: Tokens
    cursor: Index | None
    response_tokens: Tokens
    latency_s: Seconds
    error: str | None = None
    parallel: bool = False
    call_text: str | None = None
    response_text: str | None = None
    call_token_ids: TokenIds | None = None
    response_token_ids: TokenIds | None = None


class Reset(Strict):
    """Restart of the context before this turn's main step: prefix + `keep_tokens` new tokens; all cursors close."""

    keep_tokens: Tokens
    keep_text: str | None = None
    keep_token_ids: TokenIds | None = None


class RecordedAux(Strict):
    """Recorded auxiliary generation, forked before main step `turn`."""

    turn: Index
    output_tokens: Tokens
    named: tuple[int, ...]
    text: str | None = None


class Turn(Strict):
    """Model call and the tools it called. `uses` are the cursors that its text or calls refer to.

    `template_tokens` enter the context after the output and belong to no cursor: role markers, and what a
    user wrote. A turn without calls is a message to the user, whose reply comes after `user_wait_s`.
    """

    reasoning_tokens: Tokens
    text_tokens: Tokens
    calls: tuple[Call, ...]
    uses: tuple[Index, ...] = ()
    template_tokens: Tokens = 0
    user_wait_s: Seconds = 0.0
    reset: Reset | None = None
    reasoning_text: str | None = None
    text: str | None = None
    template_text: str | None = None
    reasoning_token_ids: TokenIds | None = None
    text_token_ids: TokenIds | None = None
    template_token_ids: TokenIds | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens that the model generates in this turn: reasoning, text and calls."""
        return self.reasoning_tokens + self.text_tokens + sum(call.call_tokens for call in self.calls)

    @property
    def tool_wait_s(self) -> float:
        """Seconds until the last tool response: parallel calls wait for the longest of them, serial ones add up."""
        total = longest = 0.0
        for call in self.calls:
            if call.parallel:
                longest = max(longest, call.latency_s)
            else:
                total, longest = total + longest + call.latency_s, 0.0
        return total + longest


class Answer(Strict):
    """Last model call, which calls no tool."""

    reasoning_tokens: Tokens
    text_tokens: Tokens
    uses: tuple[Index, ...] = ()
    reasoning_text: str | None = None
    text: str | None = None
    reasoning_token_ids: TokenIds | None = None
    text_token_ids: TokenIds | None = None

    @property
    def output_tokens(self) -> int:
        return self.reasoning_tokens + self.text_tokens


class Outcome(Strict):
    """End of the recording."""

    finish: Literal["answer", "unparsable", "context_limit", "turn_limit", "unknown"] = "unknown"
    correct: bool | None = None


class Task(Strict):
    """Recorded agent run."""

    schema_: Annotated[Literal["sqtrace/1"], Field(alias="schema")] = "sqtrace/1"
    task_id: Annotated[str, Field(min_length=1)]
    source: Source
    model: str | None = None
    carries: Carries
    arrival_s: Seconds | None = None
    parent: Parent | None = None
    spawn: Spawn | None = None
    prefix: Prefix
    question: Question
    reasoning_kept: bool = True
    turns: tuple[Turn, ...]
    answer: Answer | None = None
    outcome: Outcome = Outcome()
    aux: tuple[RecordedAux, ...] | None = None

    @property
    def steps(self) -> int:
        """Number of model calls: one a turn, and one for the answer."""
        return len(self.turns) + (self.answer is not None)
