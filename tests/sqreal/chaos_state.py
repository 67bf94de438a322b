"""What a session may be at when its client lost sight of it: every state that what came back leaves possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sqreal.plugin.history import History, Span
from tests.sqreal.mirror import Mirror
from tests.sqreal.reference_model import ReferenceModel


@dataclass
class State:
    """One of them, on pages of one token: the conversation, and how many tokens of its row have KV (0: no row)."""

    mirror: Mirror
    history: History = field(default_factory=History)
    waiting: list[Span] = field(default_factory=list)  # to be dropped, and still there
    first: int = 0  # tokens of the first prompt, which the tree may hold
    kv: int = 0
    unseen: int = (
        0  # tokens at its end that were said and nobody saw: their ids are to be asked of the reference
    )

    @classmethod
    def fresh(cls, model: ReferenceModel) -> State:
        return cls(Mirror(model))

    def copy(self) -> State:
        told = [replace(token) for token in self.mirror.told]
        place = {id(old): new for old, new in zip(self.mirror.told, told, strict=True)}
        tokens = [place[id(token)] for token in self.mirror.tokens]
        history = History()
        history.gone = list(self.history.gone)
        mirror = Mirror(self.mirror.model, tokens, told, self.mirror.stage)
        return State(mirror, history, list(self.waiting), self.first, self.kv, self.unseen)

    def dropped(self, spans: list[Span], *, wait: bool) -> State:
        """A turn came that asks for these spans; `wait`: a fork that is not over yet keeps them all."""
        state = self.copy()
        state.waiting += spans
        if not wait:
            for span in sorted(state.waiting, reverse=True):
                resident = state.history.resident(span)
                state.mirror.drop(*span)
                state.history.drop(resident)
                state.kv = max(0, state.kv - span.tokens)
            state.waiting = []
        return state

    def lost(self) -> State:
        """The server has no KV of it any more, but for what the tree holds."""
        state = self.copy()
        state.mirror.lost()
        state.kv = 0
        return state

    def served(self, new: list[int], cached: int) -> list[State]:
        """It was told more, and the server had KV of `cached` tokens: of its row, or of the first prompt in the tree.

        Nothing, where it cannot have been in this state; both, where the row ends with the first prompt.
        """
        found = []
        if self.kv and cached == self.kv:
            found.append(self.seen().copy())
        if cached <= (self.first or len(new)):
            found.append(self.seen().lost())
        for state in found:
            state.mirror.tell(new)
            state.mirror.computed(cached)
        return found

    def said(self, new: list[int], output: list[int]) -> State:
        """Behind `served`: the turn is complete."""
        state = self.copy()
        state.mirror.tell(output)
        state.first = state.first or len(new)
        state.kv = len(state.mirror.resident) - 1
        state.mirror.ended(state.kv)
        return state

    def forgotten(self) -> State:
        """The turn was aborted; before the first one is complete there is nothing."""
        return self.copy() if self.first else State.fresh(self.mirror.model)

    def completed_unseen(self, new: list[int], out: int) -> Iterator[State]:
        """The turn was complete, and nobody saw what it said; with the row and without."""
        for cached in {self.kv, 0}:
            for state in self.served(new, cached):
                done = state.said(new, [0] * out)
                done.unseen = out
                yield done

    def seen(self) -> State:
        """The same, with what nobody saw as the reference says it."""
        if not self.unseen:
            return self
        state = self.copy()
        tail = state.mirror.tokens[-self.unseen :]
        for place, token in enumerate(tail):
            before = Mirror(
                state.mirror.model, state.mirror.tokens[: len(state.mirror.tokens) - len(tail) + place + 1]
            )
            before.stage = state.mirror.stage
            [token.id] = before.says(1)
        state.unseen = 0
        return state
