"""An agent's session on a server with in-place eviction: what is sent of each prompt, and what is asked with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqreal.client import Client
from sqreal.plugin.history import History, Span
from sqreal.plugin.wish import DROP, FORK, FORKED, PUBLISH


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its session a request stands: what a recorded schedule says of it, beside its tokens."""

    session: str
    held: int = 0  # of its prompt, tokens that the session has and that are not sent
    drop: tuple[Span, ...] = ()  # history positions
    publish_tokens: int | None = None
    forked: int | None = None
    fork_tokens: int | None = None  # of a fork: what it reads of the session

    @property
    def turn_of(self) -> str | None:
        """The session whose turn it is; a fork is no turn."""
        return self.session if self.fork_tokens is None else None

    @property
    def asks(self) -> dict[str, Any]:
        """What it asks of the plugin."""
        if self.fork_tokens is not None:
            return {FORK: {"session": self.session, "tokens": self.fork_tokens}}
        asked = {
            DROP: [list(span) for span in self.drop] or None,
            PUBLISH: self.publish_tokens,
            FORKED: self.forked,
        }
        return {key: value for key, value in asked.items() if value is not None}


@dataclass(slots=True)
class AgentSession:
    """One conversation of one agent, from turn to turn; opened with its first turn.

    `held`: resident tokens that the server was told and has said in completed turns.
    """

    client: Client
    name: str
    held: int = 0
    kv_tokens: int = 0  # of these, with KV as long as the server releases nothing
    _history: History = field(default_factory=History)
    _dropped: list[Span] = field(default_factory=list)  # not asked for yet
    _open: bool = False

    @property
    def drops(self) -> bool:
        """Whether the next turn asks for something to be dropped."""
        return bool(self._dropped)

    def drop(self, spans: Iterable[tuple[int, int]]) -> None:
        """Have resident spans dropped with the next turn."""
        for span in sorted(spans, reverse=True):
            resident = Span(*span)
            self._dropped += self._history.parts(resident)
            self._history.drop(resident)
            self.held -= resident.tokens
            self.kv_tokens -= resident.tokens

    async def turn(self, prompt_tokens: int, first: int, forked: int | None, *, restart: bool) -> Place:
        """The place of the next turn, whose prompt has so many tokens; `first`: what others may share of a first one."""
        if restart or prompt_tokens <= self.held:  # SGLang takes no turn without a token of its own
            await self.close()
        if not self._open:
            await self.client.open_session(self.name)
            self._open = True
        publish = None if self.held else first
        dropped, self._dropped = tuple(sorted(self._dropped)), []
        return Place(self.name, self.held, dropped, publish, forked)

    def fork(self, tokens: int) -> Place:
        """The place of an aux thread that reads the first `tokens` resident tokens."""
        return Place(self.name, fork_tokens=tokens)

    def ended(self, prompt_tokens: int, output_tokens: int, cached_tokens: int, retractions: int) -> bool:
        """A turn is complete; returns whether its positions began at 0, as the server had lost the session's KV."""
        fresh = retractions > 0 or cached_tokens < min(self.kv_tokens, prompt_tokens - 1)
        self.held = prompt_tokens + output_tokens
        self.kv_tokens = self.held - 1
        return fresh

    async def close(self) -> None:
        """Free what the server holds of it."""
        if self._open:
            await self.client.close_session(self.name)
        self.held = self.kv_tokens = 0
        self._history, self._dropped, self._open = History(), [], False
