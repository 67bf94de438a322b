# SPDX-License-Identifier: Apache-2.0
"""Conversation as importers write it: steps, their calls, and the messages after them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.schema import Carried, Outcome, Parent, Source, Spawn

MARKUP_TOKENS = 4
"""Role markers of a message (assumed)."""


@dataclass
class Invocation:
    """Tool call; `text` as the model wrote it; `response` is None if none was recorded.

    `other_tokens` of the response are not text but pictures.
    """

    tool: str
    text: str
    arguments: Any = None
    response: str | None = None
    error: str | None = None
    latency_s: float = 0.0
    parallel: bool = False
    other_tokens: int = 0


@dataclass
class Step:
    """Model call, and what entered the context after it: tool responses, and `user`, what a user wrote.

    `thinks`: it reasoned, even where the recording leaves the text out. `prompt`, `output` and, of the output,
    `reasoning_tokens` are recorded token counts; `estimated`: prompt or output was not. `restarted`: a compaction came
    before it, which left `kept`. `forgets`: reasoning tokens that its prompt may lack without being a new context. `counts_only`: no
    text was recorded of it.
    """

    reasoning: str = ""
    text: str = ""
    calls: list[Invocation] = field(default_factory=list)
    user: str = ""
    user_wait_s: float = 0.0
    thinks: bool = False
    prompt: int | None = None
    output: int | None = None
    estimated: bool = False
    restarted: bool = False
    kept: str = ""
    user_other_tokens: int = 0
    reasoning_tokens: int | None = None
    forgets: int = 0
    counts_only: bool = False

    @property
    def visible_tokens(self) -> int:
        """Estimated tokens of the recorded text of the output."""
        texts = (self.reasoning, self.text, *(call.text for call in self.calls))
        return sum(estimate_tokens(text) for text in texts)

    @property
    def heard_tokens(self) -> tuple[list[int], int]:
        """Estimated tokens after the output: of each response, and of the text that belongs to none."""
        responses = [estimate_tokens(call.response or "") + call.other_tokens for call in self.calls]
        messages = (
            len(self.calls) + bool(self.user) + 1
        )  # each response, the user's, and the next output's header
        return responses, estimate_tokens(self.user) + self.user_other_tokens + MARKUP_TOKENS * messages

    @property
    def growth_tokens(self) -> int:
        """Estimated tokens of everything after the output."""
        responses, rest = self.heard_tokens
        return sum(responses) + rest


@dataclass
class Transcript:
    """Conversation of one agent.

    `prefix` is the system text with the tool definitions; `prefix_id` names it, and `prefix_tokens` counts it, where it
    was recorded otherwise.
    """

    task_id: str
    source: Source
    prefix: str
    question: str
    steps: list[Step]
    timing: Carried
    text: Carried = "recorded"
    model: str | None = None
    prefix_id: str | None = None
    prefix_tokens: int | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome(finish="unknown"))
    parent: Parent | None = None
    spawn: Spawn | None = None
    arrival_s: float | None = None
    question_other_tokens: int = 0

    @property
    def question_tokens(self) -> int:
        """Estimated tokens of the question, with the headers of its message and of the first output."""
        return estimate_tokens(self.question) + self.question_other_tokens + 2 * MARKUP_TOKENS
