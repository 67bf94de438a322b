# SPDX-License-Identifier: Apache-2.0
"""What a server with in-place eviction has to say: a session's tokens, who saw whom when, and a reference model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from tests.sqreal.reference_model import ReferenceModel

NEVER = 1 << 30
TIE = (
    1e-3  # of two logits: which one is greater rounding may decide; in float32 the two sides are nearer by far
)


@dataclass
class Token:
    """One token of a row: when its KV was computed and when it was dropped, in stages of its session."""

    id: int
    position: int
    computed: int = NEVER
    gone: int = NEVER


@dataclass
class Mirror:
    """One session as its client knows it; a stage ends with every drop."""

    model: ReferenceModel
    tokens: list[Token] = field(default_factory=list)
    told: list[Token] = field(default_factory=list)  # by history position, whether or not in `tokens`
    run_context: int = 0

    @property
    def resident(self) -> list[Token]:
        return [token for token in self.tokens if token.gone == NEVER]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.resident]

    def tell(self, ids: list[int]) -> None:
        """The session is sent tokens, or has said them."""
        for each in ids:
            self.tokens.append(Token(each, len(self.tokens)))
            self.told.append(self.tokens[-1])

    def drop(self, start: int, stop: int) -> None:
        """History positions [start, stop) are gone from the next stage on."""
        self.run_context += 1
        for token in self.told[start:stop]:
            token.gone = min(token.gone, self.run_context)

    def computed(self, cached: int) -> None:
        """A turn was served of which the server had `cached` tokens: the others were computed now."""
        for token in self.resident[cached:]:
            token.computed = self.run_context

    def ended(self, kv: int) -> None:
        """A turn is complete and left KV of so many resident tokens: its outputs among them were computed in it."""
        for token in self.resident[:kv]:
            token.computed = min(token.computed, self.run_context)

    def lost(self) -> None:
        """The server computes what is left from position 0."""
        self.tokens = self.resident
        for position, token in enumerate(self.tokens):
            token.position, token.computed = position, self.run_context

    def fork(self, length: int, cached: int, ids: list[int]) -> Mirror:
        """What a fork of the first `length` resident tokens sees, who read `cached` of them and sends more."""
        kept = self.resident[:length]
        last = self.tokens.index(kept[-1])
        other = Mirror(
            self.model, [replace(token) for token in self.tokens[: last + 1]], run_context=self.run_context
        )
        for token in other.resident[cached:]:
            token.computed = self.run_context
        other.tell(ids)
        return other

    def fits(self, count: int) -> list[bool]:
        """Of each of the last `count` tokens, whether it may be what the model says behind those before it."""
        logits = self._logits(count)
        said = torch.tensor([token.id for token in self.tokens[-count:]])
        return (logits.gather(1, said[:, None])[:, 0] >= logits.amax(-1) - TIE).tolist()

    def says(self, count: int) -> list[int]:
        """The greedy tokens of the last `count` places, each behind those that were said before it."""
        return self._logits(count).argmax(-1).tolist()

    def scores(self, count: int) -> list[float]:
        """The log-probabilities of the last `count` tokens, each behind those that were said before it."""
        tokens = torch.tensor([token.id for token in self.tokens[-count:]])
        return self._logits(count).log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist()

    def blind(self) -> Mirror:
        """The same to somebody who has not noticed any drop: what a test must be able to tell from this one."""
        tokens = [replace(token, gone=NEVER) for token in self.tokens]
        return Mirror(self.model, tokens, run_context=self.run_context)

    def _logits(self, count: int) -> torch.Tensor:
        run_context = [token.computed if token.computed != NEVER else self.run_context for token in self.tokens]
        gone = torch.tensor([token.gone for token in self.tokens])
        mask = gone[None] > torch.tensor(run_context)[:, None]
        mask &= torch.ones_like(mask).tril()
        logits = self.model.logits(
            [token.id for token in self.tokens], [token.position for token in self.tokens], mask
        )
        return logits[-count - 1 : -1]
