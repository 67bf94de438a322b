# SPDX-License-Identifier: Apache-2.0
"""Agent's session on a server with in-place eviction: the tokens to send of each prompt, and its request options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqreal.plugin.history import History, Span
from sqreal.plugin.request_options import DROP, FORK, FORKED, HOLD, PUBLISH
from sqreal.server.client import Client
from sqsim.models.serving.tokens import Tokens, common_prefix, count


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a request in its session, which a recorded schedule holds in addition to its tokens."""

    session: str
    held: int = 0  # leading prompt tokens that the session has and that are not sent
    drop: tuple[Span, ...] = ()  # history positions
    publish_tokens: int | None = None
    forked: int | None = None
    fork_tokens: int | None = None  # of a fork: the tokens it reads of the session
    hold_s: float = 0.0  # seconds after the turn in which the idle session is not released

    @property
    def turn_of(self) -> str | None:
        """The session whose turn it is; a fork is not a turn."""
        return self.session if self.fork_tokens is None else None

    @property
    def asks(self) -> dict[str, Any]:
        """Its request options for the plugin."""
        if self.fork_tokens is not None:
            return {FORK: {"session": self.session, "tokens": self.fork_tokens}}
        asked = {
            DROP: [list(span) for span in self.drop] or None,
            PUBLISH: self.publish_tokens,
            FORKED: self.forked,
            HOLD: self.hold_s or None,
        }
        return {key: value for key, value in asked.items() if value is not None}


@dataclass(slots=True)
class AgentSession:
    """Conversation of one agent, from turn to turn; opened with its first turn.

    `held`: resident tokens that the server was told and has said in completed turns.
    """

    client: Client
    name: str
    held: int = 0
    kv_tokens: int = 0  # of these, with KV while the server releases nothing
    is_open: bool = False
    _history: History = field(default_factory=History)
    _dropped: list[Span] = field(default_factory=list)  # not sent yet
    _content: Tokens = ()  # prompt and output of its last turn

    @property
    def drops(self) -> bool:
        """Whether the next turn drops spans."""
        return bool(self._dropped)

    def drop(self, spans: Iterable[tuple[int, int]]) -> None:
        """Drop resident spans with the next turn."""
        for span in sorted(spans, reverse=True):
            resident = Span(*span)
            self._dropped += self._history.parts(resident)
            self._history.drop(resident)
            self.held -= resident.tokens
            self.kv_tokens -= resident.tokens

    async def turn(
        self,
        prompt_tokens: int,
        first: int,
        forked: int | None,
        *,
        restart: bool,
        content: Tokens,
        hold_s: float = 0.0,
    ) -> Place:
        """Place the next turn, whose prompt has `tokens` tokens.

        first: tokens of a first prompt that others may share. restart: the history was rewritten. content: the prompt
        and the forced output. hold_s: seconds for which the server is to keep the idle session; 0: none.
        """
        if restart or prompt_tokens <= self.held:  # SGLang accepts no turn without a token of its own
            await self.close()
        if not self.is_open:
            await self.client.open_session(self.name)
            self.is_open = True
        self._content = content
        publish = None if self.held else first
        dropped, self._dropped = tuple(sorted(self._dropped)), []
        return Place(self.name, self.held, dropped, publish, forked, hold_s=hold_s)

    def fork(self, prompt: Tokens, tokens: int) -> Place | None:
        """Place an aux thread that reads the first `tokens` resident tokens; None: there is nothing to read.

        While the history is rewritten, it reads the unchanged part.
        """
        if not self.is_open:
            return None
        same = common_prefix(self._content, prompt)
        rewritten = same < min(tokens, count(self._content))
        return Place(self.name, fork_tokens=same if rewritten else tokens)

    def ended(self, prompt_tokens: int, output_tokens: int, cached_tokens: int, retractions: int) -> bool:
        """Complete a turn; returns whether its positions began at 0 because the server had lost the session's KV."""
        fresh = retractions > 0 or cached_tokens < min(self.kv_tokens, prompt_tokens - 1)
        self.held = prompt_tokens + output_tokens
        self.kv_tokens = self.held - 1
        return fresh

    async def close(self) -> None:
        """Free the session's KV on the server."""
        if self.is_open:
            await self.client.close_session(self.name)
        self.held = self.kv_tokens = 0
        self._history, self._dropped, self.is_open, self._content = History(), [], False, ()
