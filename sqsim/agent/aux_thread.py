# SPDX-License-Identifier: Apache-2.0
"""The auxiliary thread: its trigger phrase, and the parser of its output.

The thread reads the main context up to its fork, then the trigger phrase, and generates a reasoning text and
`{"del_cursors": [...]}` (METHOD.md, Algorithm 1). The model of a real server may write that text itself, and
`read_decision` parses it. In a simulation a decision model replaces that text (policies/decisions.py).
"""

from __future__ import annotations

import re

from sqsim.policies.base import Decision

TRIGGER = "** Memory management mode **"
"""The phrase that asks the model for a decision (arXiv 2602.22603)."""

TRIGGER_TOKENS = 12
"""Tokens of the phrase with its chat template. Assumed: no recording of it is public; a live run asks its tokenizer."""

NO_CURSOR = 10**18
"""Replacement of any larger number that a model names: no task has this cursor, and a record can hold it."""

_KEY = "del_cursors"
_NUMBER = "(?:0|[1-9][0-9]*)"  # a whole number of JSON; Python's \d also takes digits of other scripts
_LIST = re.compile(
    rf"[ \t\r\n]*:[ \t\r\n]*\[([ \t\r\n]*|[ \t\r\n]*{_NUMBER}(?:[ \t\r\n]*,[ \t\r\n]*{_NUMBER})*[ \t\r\n]*)\][ \t\r\n]*\}}"
)


def read_decision(text: str) -> Decision:
    """Parse a model's output: any text whose last mention of `del_cursors` reads `{"del_cursors": [0, 3]}`.

    The paper prints the key without quotes, so both forms are accepted (METHOD.md, Algorithm 1). Only the last mention
    counts, so that a list which was cut off does not revive an earlier, withdrawn one. An object with other keys, and
    items that are no JSON whole numbers of 0 or more, are malformed. A malformed output deletes nothing.
    """
    head, key, tail = text.rpartition(_KEY)
    if not key:
        return Decision(malformed=True)
    if head.endswith('"') and tail.startswith('"'):
        head, tail = head[:-1], tail[1:]
    found = _LIST.match(tail)
    if found is None or not head.rstrip(" \t\r\n").endswith("{"):
        return Decision(malformed=True)
    numbers = re.findall(_NUMBER, found[1])
    # Python refuses to parse thousands of digits; no task has a cursor of more than 18 digits either.
    return Decision(tuple(dict.fromkeys(int(n) if len(n) <= 18 else NO_CURSOR for n in numbers)))
