"""One generation request: what was asked for, and how far the scheduler has brought it.

States: waiting (queued) -> prefilling (one or several chunks) -> decoding -> finished. A retraction leads from
decoding back to waiting (RULES.md rule 34). Callers read every field; only the scheduler writes the progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sqsim.models.tokens import Tokens, count

Role = Literal["main", "aux"]
Finish = Literal["stop", "length", "abort", "out_of_memory"]


@dataclass(slots=True, eq=False)
class Request:
    """A request and its progress; all counts in tokens.

    `output` is what the model would say. The request ends with a stop token when all of it is out and it is
    shorter than `max_new_tokens`, else by length; with `ignore_eos` always by length. Compared by identity.
    """

    rid: str
    prompt: Tokens  # the whole context in order, for a session's later turns too
    output: Tokens
    max_new_tokens: int  # as declared; capped when submitted (RULES.md rule 13)
    ignore_eos: bool = False
    role: Role = "main"
    session: str | None = None  # main: the streaming session whose next turn this is; aux: the session it forks
    fork_tokens: int | None = None  # aux in a session: reads the session's row up to here
    publish_tokens: int | None = None  # first turn of a session: how much of the prompt the tree may keep

    # Progress, written by the scheduler.
    n_in: int = field(init=False)
    n_out: int = field(default=0, init=False)
    cached_tokens: int = field(default=0, init=False)  # prefix of the first admission (rule 35)
    computed_tokens: int = field(default=0, init=False)  # sum of extends over all admissions
    prefill_chunks: int = field(default=0, init=False)
    retractions: int = field(default=0, init=False)
    kv_tokens: int = field(default=0, init=False)  # KV length at the end (rule 27)
    finish: Finish | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.n_in = count(self.prompt)
