"""The auxiliary thread: what it reads, what it generates, and how that is read.

The thread reads the main context up to its fork, then the trigger phrase, and generates a reasoning text and
`{"del_cursors": [...]}` (METHOD.md, Algorithm 1). A real server's model may write that text itself; `read_decision`
reads it. In a simulation nobody writes it, so a decision model stands for it (policies/decisions.py).
"""

from __future__ import annotations

import re

from sqsim.policies.base import Decision

TRIGGER = "** Memory management mode **"
"""The phrase that asks the model for a decision (arXiv 2602.22603)."""

TRIGGER_TOKENS = 12
"""The phrase with its chat-template tokens. Assumed: no recording of it is public; a live run asks its tokenizer."""

NO_CURSOR = 10**18
"""What stands for a named number that is larger still: a cursor that no task has, and one that a record can hold."""

_KEY = "del_cursors"
_NUMBER = "(?:0|[1-9][0-9]*)"  # JSON's; not what Python takes for digits
_LIST = re.compile(
    rf"[ \t\r\n]*:[ \t\r\n]*\[([ \t\r\n]*|[ \t\r\n]*{_NUMBER}(?:[ \t\r\n]*,[ \t\r\n]*{_NUMBER})*[ \t\r\n]*)\][ \t\r\n]*\}}"
)


def read_decision(text: str) -> Decision:
    """Read what a model wrote: any text that ends its talk of `del_cursors` with `{"del_cursors": [0, 3]}`.

    The paper prints the key without quotes, so both are taken (METHOD.md, Algorithm 1). The last mention of the key
    counts, whatever follows it: a list that was cut off must not let an earlier, withdrawn one stand. An object with
    other keys, and items that are no JSON whole numbers of 0 or more, are malformed: what cannot be read clearly
    deletes nothing.
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
    # Python refuses to read thousands of digits; no task has so many cursors either.
    return Decision(tuple(dict.fromkeys(int(n) if len(n) <= 18 else NO_CURSOR for n in numbers)))
