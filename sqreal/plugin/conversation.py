# SPDX-License-Identifier: Apache-2.0
"""Conversation of a session: the token ids that its next turn continues, with or without their KV."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_MATCHED_TOKEN

from sqreal.plugin.checks import BadRequestError
from sqreal.plugin.history import History, Span, merged, whole_pages
from sqreal.plugin.request_options import DROP, RequestOptions
from sqreal.plugin.transcript import Transcript

_READS = "sqreal_reads"  # attribute of a fork's request: the conversation that it reads


class Conversation:
    """Streaming session of SGLang, its `Session`, and its dropped tokens.

    `first`: tokens at its start that the radix tree may hold and others share. `waiting`: spans to be dropped as soon
    as possible, by history position. `forks`: unfinished forks by request id, with the tokens they asked for.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.history = History()
        self.first = 0
        self.waiting: list[Span] = []
        self.forks: dict[str, int] = {}
        self.forked: int | None = None
        self.hold_s = 0.0  # seconds after its turn during which it is not released
        self.transcript = Transcript()
        self.turn: Any = None  # the last turn's request that entered the queue

    @property
    def busy(self) -> bool:
        """Whether a turn is unfinished, in the queue or running."""
        return bool(self._session._inflight)  # noqa: SLF001 - SGLang has no public name for it

    @property
    def begun(self) -> bool:
        """Whether any turn has completed, so that there is something to continue."""
        return self._session.committed_origin_len is not None

    @property
    def told(self) -> int:
        """Number of tokens that it was told and has said, dropped or not."""
        return (len(self._completed()) if self.begun else 0) + self.history.gone_tokens

    def answer(self, tokens: int) -> Any:
        """Return the ids of the last `tokens` tokens, none of which is dropped."""
        return self._completed()[-tokens:]

    @property
    def stopped(self) -> bool:
        """Whether a stop token ended the last answer, not its length or a text."""
        return isinstance(self._last.finished_reason, FINISH_MATCHED_TOKEN)

    def ids(self) -> Any:
        """The resident token ids, as far as they are known now: an array."""
        turn = self.turn
        if self.busy and turn is not None and turn.to_finish is None:
            return turn.origin_input_ids + turn.output_ids
        return self._completed() if self.begun else []

    def begin(self, options: RequestOptions, tokens: int) -> None:
        """Begin a turn; when none has completed it is the first, and sends the whole prompt."""
        self.forked, self.hold_s = options.forked, options.hold_s
        if not self.begun:
            self.history, self.waiting = History(), []
            self.first = options.publish if options.publish is not None else tokens

    def check_drop(self, spans: tuple[Span, ...]) -> None:
        """Raise a BadRequestError for spans that this conversation cannot drop, now or later."""
        told = self.told
        for span in spans:
            if span.stop > told:
                raise BadRequestError(
                    f"{DROP}: {list(span)} is out of range; the session was told and has said {told} tokens"
                )
            if span.start < self.first:
                raise BadRequestError(
                    f"{DROP}: {list(span)} reaches into the first {self.first} tokens, which the session shares with "
                    "others; drop later tokens, or send less in the first turn"
                )
            for there, word in ((self.history.touches(span), "is gone already"), (self._waits(span), "waits")):
                if there is not None:
                    raise BadRequestError(f"{DROP}: {list(span)} overlaps {list(there)}, which {word}")

    def ready(self, committed: int | None, tail: int, page: int) -> list[Span]:
        """Take the waiting spans that can be dropped now; returns the resident whole pages inside them, sorted.

        `committed`: tokens with KV, None when it is lost. A span is dropped when it has KV, with `tail` tokens of KV after it.
        """
        if self.forks:
            return []
        found = []
        for span in list(self.waiting):
            resident = self.history.resident(span)
            if committed is None or resident.stop + tail <= committed:
                self.waiting.remove(span)
                if (pages := whole_pages(resident, page)) is not None:
                    found.append(pages)
        return merged(found)

    def cut(self, spans: list[Span]) -> None:
        """Remove these resident tokens from those that the next turn continues."""
        ids = self._completed()
        for span in reversed(spans):
            self.history.drop(span)
            del ids[span.start : span.stop]
        session, last = self._session, self._last
        last.origin_input_ids = last.origin_input_ids_unpadded = ids
        last.output_ids = last.output_ids[:0]  # they are part of `ids`
        last.full_untruncated_fill_ids = None  # SGLang makes a new one
        session.committed_origin_len = session.committed_unpadded_len = len(ids)

    def _waits(self, span: Span) -> Span | None:
        return next((each for each in self.waiting if each.start < span.stop and span.start < each.stop), None)

    @property
    def _last(self) -> Any:
        """Return the request of the last completed turn."""
        [node] = self._session.req_nodes.values()
        return node.req

    def _completed(self) -> Any:
        """Join the resident tokens of the completed turns into a new array, as SGLang would."""
        last = self._last
        told = last.origin_input_ids[: self._session.committed_origin_len]
        return told + last.output_ids[: last.sampling_params.max_new_tokens]


def announce_fork(req: Any, talk: Conversation, tokens: int) -> None:
    """Note a fork in the queue: until it ends, the tokens that it reads are not cut."""
    setattr(req, _READS, talk)
    talk.forks[req.rid], talk.forked = tokens, None


def fork_over(req: Any) -> None:
    """Note a request's end; if it was a fork, its session may be cut again."""
    talk: Conversation | None = getattr(req, _READS, None)
    if talk is not None:
        talk.forks.pop(req.rid, None)
