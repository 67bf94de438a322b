# SPDX-License-Identifier: Apache-2.0
"""Random numbers keyed by the decision they make, never by its time (SPEC.md, "Aux threads").

A number is a pure function of `(seed, purpose, key...)` and does not depend on the order of events. So two policies
that run with one seed see the same luck (common random numbers).
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
    """Draw one number in [0, 1) that is the same for the same key in every process and on every machine."""
    return int.from_bytes(_digest(seed, purpose, key)[:8], "big") / 2.0**64


def generator(seed: int, purpose: str, *key: Key) -> np.random.Generator:
    """Make a numpy generator for decisions that need several numbers (Philox, keyed by the digest)."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, purpose, key), "big")))
