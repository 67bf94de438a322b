# SPDX-License-Identifier: Apache-2.0
"""Estimate a text's tokens without a tokenizer: the pieces of the text approximate o200k's count.

o200k first cuts a text into pieces (words with the character before them, numbers of up to three digits, runs
of punctuation, white space) and then into byte pairs. We cut the same way and charge one token a piece and
one more for every ten letters of a word, every three signs of a run, or every two letters of another script.
Counts that come from here are labelled `usage: derived`; tests compare it with recorded counts.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r"(?P<word>[^\S\r\n]?[^\r\n\w]?(?:[A-Z]?[a-z]+|[A-Z]+))"
    r"|(?P<number>\d{1,3})"
    r"|(?P<blank>[ \t]*[\r\n]\s*|[ \t]{2,})"
    r"|(?P<other> ?(?:[^\W\d_a-zA-Z])+)"
    r"|(?P<signs> ?(?:[^\s\w]|_)+)"
)
_LETTERS, _SIGNS, _OTHER = 11, 4, 3


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text; 0 for the empty one, at least 1 for any other."""
    if not text:
        return 0
    tokens = 0
    for piece in _PIECE.finditer(text):
        size = piece.end() - piece.start()
        kind = piece.lastgroup
        if kind == "word":
            tokens += 1 + (size - 1) // _LETTERS
        elif kind == "signs":
            tokens += 1 + (size - 1) // _SIGNS
        elif kind == "other":
            tokens += 1 + (size - 1) // _OTHER
        else:
            tokens += 1
    return max(1, tokens)
