# SPDX-License-Identifier: Apache-2.0
"""What a session may be at when its client lost sight of it: every state that what came back leaves possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqreal.plugin.history import History, Span, merged, whole_pages
from tests.sqreal.mirror import Mirror
from tests.sqreal.reference_model import ReferenceModel


@dataclass
class State:
    """One of them: the conversation, and how many tokens of its row have KV (0: no row)."""

    mirror: Mirror
    page: int
    history: History = field(default_factory=History)
    waiting: list[Span] = field(default_factory=list)  # to be dropped, and still there
    first: int = 0  # tokens of the first prompt, which the tree may hold
    kv: int = 0
    unseen: int = (
        0  # tokens at its end that were said and nobody saw: their ids are to be asked of the reference
    )

    @classmethod
    def fresh(cls, model: ReferenceModel, page: int) -> State:
        return cls(Mirror(model), page)

    def copy(self) -> State:
        told = [replace(token) for token in self.mirror.told]
        place = {id(old): new for old, new in zip(self.mirror.told, told, strict=True)}
        tokens = [place[id(token)] for token in self.mirror.tokens]
        history = History()
        history.gone = list(self.history.gone)
        mirror = Mirror(self.mirror.model, tokens, told, self.mirror.run_context)
        return replace(self, mirror=mirror, history=history, waiting=list(self.waiting))

    def dropped(self, spans: list[Span]) -> Iterator[State]:
        """A turn came that asks for these spans: a fork that is not over keeps all that wait, a row those near its end."""
        waiting = [*self.waiting, *spans]
        tail = self.mirror.model.window
        behind = [span for span in waiting if self.history.resident(span).stop + tail <= self.kv]
        chosen: list[Sequence[Span]] = []
        for going in ([], behind, waiting):
            if going not in chosen:
                chosen.append(going)
                state = self.copy()
                if going != behind and going:
                    state = self.seen().lost()  # else they had to wait
                state._drop(going)
                state.waiting = [span for span in waiting if span not in going]
                yield state

    def _drop(self, spans: Sequence[Span]) -> None:
        """Whole pages inside each span, as the server has to."""
        pages = [whole_pages(self.history.resident(span), self.page) for span in spans]
        for resident in reversed(merged([each for each in pages if each is not None])):
            self.mirror.drop(*self.history.told(resident))
            self.history.drop(resident)
            if self.kv:
                self.kv -= resident.tokens

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
        return self.copy() if self.first else State.fresh(self.mirror.model, self.page)

    def retracted(self) -> State:
        """Behind `said`: the turn lost its row, and was computed once more from position 0."""
        state = self.lost()
        state.kv = self.kv
        return state

    def completed_unseen(self, new: list[int], out: int) -> Iterator[State]:
        """The turn was complete, and nobody saw what it said; with the row, without, and with it until it was retracted."""
        for cached in {self.kv, 0}:
            for state in self.served(new, cached):
                done = state.said(new, [0] * out)
                done.unseen = out
                yield done
                if len(done.mirror.tokens) > len(done.mirror.resident):  # else it stands where it stood
                    yield from (done.seen(moved) for moved in range(1, out))

    def seen(self, moved: int | None = None) -> State:
        """The same, with what nobody saw as the reference says it; `moved`: it was retracted when it had said so many."""
        if not self.unseen:
            return self
        state = self.copy()
        for place in range(self.unseen):
            if place == moved:
                state = state.retracted()
            mirror = state.mirror
            before = Mirror(mirror.model, mirror.tokens[: len(mirror.tokens) - self.unseen + place + 1])
            before.run_context = mirror.run_context
            [before.tokens[-1].id] = before.says(1)
        state.unseen = 0
        return state
