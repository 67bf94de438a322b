"""Random draws keyed by what they decide, never by when they happen (SPEC.md, "Aux threads").

A draw is a pure function of `(seed, purpose, key...)`: it does not depend on the order of events, so two
policies compared under one seed see the same luck (common random numbers).
"""

from __future__ import annotations

import hashlib

import numpy as np

Key = str | int


def _digest(seed: int, purpose: str, key: tuple[Key, ...]) -> bytes:
    # \x1f cannot occur in an int, and strings are length-prefixed, so distinct keys give distinct texts.
    parts = [f"{len(str(part))}:{part}" for part in (seed, purpose, *key)]
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).digest()


def uniform(seed: int, purpose: str, *key: Key) -> float:
    """One number in [0, 1), the same for the same key in every process and on every machine."""
    return int.from_bytes(_digest(seed, purpose, key)[:8], "big") / 2.0**64


def generator(seed: int, purpose: str, *key: Key) -> np.random.Generator:
    """A numpy generator for draws that need more than one number (Philox, keyed by the digest)."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, purpose, key), "big")))
