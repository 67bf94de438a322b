# SPDX-License-Identifier: Apache-2.0
"""One generation request in two parts: `Asked`, which never changes, and `Request`, its progress at the scheduler.

States: waiting (queued) -> prefilling (one or several chunks) -> decoding -> finished. A retraction leads from
decoding back to waiting (RULES.md rule 34). Callers read every field; only the scheduler writes the progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from sqsim.models.serving.tokens import Tokens, concat, count

if TYPE_CHECKING:
    from sqsim.models.serving.pool import Row
    from sqsim.models.serving.radix import MatchHint
    from sqsim.models.serving.session import Session

Role = Literal["main", "aux"]
Finish = Literal["stop", "length", "abort", "out_of_memory"]


class Asked(NamedTuple):
    """The request as its client sends it; all counts in tokens.

    `output` is the model's whole output, at least one token. If it is shorter than `max_new_tokens`, the request ends
    with a stop token after it, else by length. With `ignore_eos` the request always ends by length, and `output` must
    then reach the capped `max_new_tokens`.
    """

    rid: str
    prompt: Tokens  # the whole context in order, for a session's later turns too
    output: Tokens
    max_new_tokens: int  # as declared; the scheduler caps it (rule 13)
    ignore_eos: bool = False
    role: Role = "main"
    session: str | None = None  # main: the streaming session whose next turn this is; aux: the session it forks
    fork_tokens: int | None = None  # aux in a session: reads the session's row up to here
    forked: int | None = (
        None  # main in a session: an aux request that reads this many of its tokens will follow
    )
    publish_tokens: int | None = None  # first turn of a session: tokens of the prompt that the tree may keep
    n_in: int = 0  # tokens of the prompt; 0: count them from `prompt`


@dataclass(slots=True, eq=False)
class Request:
    """One request and its progress at the scheduler; all counts in tokens. Compared by identity."""

    asked: Asked
    match_hint: MatchHint | None = (
        None  # end of this conversation's last insertion into the tree, kept up to date
    )

    # Progress.
    n_out: int = field(default=0, init=False)
    cached_tokens: int = field(default=0, init=False)  # prefix of the first admission (rule 35)
    computed_tokens: int = field(default=0, init=False)  # sum of extends over all admissions
    prefill_chunks: int = field(default=0, init=False)
    retractions: int = field(default=0, init=False)
    kv_tokens: int = field(default=0, init=False)  # KV length at the end (rule 27)
    finish: Finish | None = field(default=None, init=False)
    fresh: bool = field(
        default=True, init=False
    )  # its last admission had no session's row, so its positions start at 0

    # Derived once from `asked`.
    n_in: int = field(init=False)  # tokens of the prompt
    output_tokens: int = field(init=False, repr=False)  # of the whole output
    max_new_tokens: int = field(init=False)  # as asked, capped when submitted (rule 13)

    # The scheduler's working state, private to the scheduler.
    context: Tokens = field(init=False, repr=False)  # prompt and whole output; the first `known` tokens exist
    ends_at: int = field(
        default=0, init=False, repr=False
    )  # n_out that finishes it; 0 once it is to be aborted
    quiet_until: int = field(
        default=-1, init=False, repr=False
    )  # up to this n_out its results neither end it nor remove it from the next batch (rule 22)
    row: Row | None = field(default=None, init=False, repr=False)  # the KV it runs on
    lender: Session | None = field(
        default=None, init=False, repr=False
    )  # the session whose row it borrows or forks
    prefix: int = field(default=0, init=False, repr=False)  # tokens with KV when its next extend starts
    extend_end: int = field(default=0, init=False, repr=False)  # where that extend ends
    branch: int | None = field(default=None, init=False, repr=False)  # publish only up to here first (rule 40)
    middle_chunks: int = field(
        default=0, init=False, repr=False
    )  # launched chunks whose result brings no token
    launched: int = field(default=-1, init=False, repr=False)  # number of the last batch it was in
    decode_steps: int = field(default=0, init=False, repr=False)  # since its last prefill
    retracted: bool = field(default=False, init=False, repr=False)  # its pending result is to be dropped
    aborting: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        asked = self.asked
        self.n_in, self.output_tokens = asked.n_in or count(asked.prompt), count(asked.output)
        assert self.n_in > 0, f"request {asked.rid} has an empty prompt"
        assert self.output_tokens > 0, (
            f"request {asked.rid} has an empty output; a generation has at least one token"
        )
        self.max_new_tokens = asked.max_new_tokens
        self.context = concat(asked.prompt, asked.output)

    @property
    def known(self) -> int:
        """Tokens of the context that exist by now, all of which a (re-)prefill has to bring into KV."""
        return self.n_in + self.n_out

    @property
    def extend(self) -> int:
        """Tokens of the extend that is planned or in flight."""
        return self.extend_end - self.prefix

    def finished_tokens(self) -> int | None:
        """Count the output tokens of a finished request; None if it was aborted or is unfinished (rule 27)."""
        return min(self.n_out, self.max_new_tokens) if self.finish in ("stop", "length") else None
