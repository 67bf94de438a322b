# SPDX-License-Identifier: Apache-2.0
"""Sessions of a server with in-place eviction: SGLang's streaming sessions with four additions.

A session's row of KV can be *cut* between turns, *forked* (read up to a point by another request), *released* while it
is idle, and *outlive* its session for the forks that read it. An aborted or retracted turn loses the row. A turn may request
that the idle session is *held* for a while after it: then it is not released, but it may be closed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sqreal.plugin import versions
from sqreal.plugin.compaction import close_up
from sqreal.plugin.conversation import Conversation, fork_over
from sqreal.plugin.history import Span, common_prefix
from sqreal.plugin.reader import Reader
from sqreal.plugin.request_options import Fork, fork_of

_ADAPTER = versions.adapter()

SHIFT = "sqreal_shift"
"""Attribute of a request: the number of tokens before its own that were cut from its row."""
_CONVERSATION = "sqreal_conversation"  # attribute of a Session


class Cut(NamedTuple):
    """Tokens that were cut out of a row before its present token `at`."""

    at: int
    tokens: int


@dataclass(eq=False)
class Slot(_ADAPTER.Row):  # type: ignore[misc,name-defined]  # SGLang's class, untyped here
    """A session's row of KV. Positions keep counting the tokens cut out of it."""

    conversation: Any = None
    cuts: list[Cut] = field(default_factory=list)
    busy: bool = True  # does an admitted turn run on it?
    rested: int = 0  # when it last became idle, counted in ends of turns
    readers: list[Reader] = field(default_factory=list)
    held_until: float | None = None  # seconds of the monotonic clock; not released before, while it is idle

    @property
    def shift(self) -> int:
        """Number of tokens cut out of the row."""
        return sum(cut.tokens for cut in self.cuts)

    def shift_at(self, tokens: int) -> int:
        """Count the tokens cut out among the first `tokens` tokens of the row."""
        return sum(cut.tokens for cut in self.cuts if cut.at < tokens)

    def cut(self, span: Span) -> None:
        """Note that these tokens were cut out of the row."""
        moved = [
            Cut(cut.at if cut.at <= span.start else max(span.start, cut.at - span.tokens), cut.tokens)
            for cut in self.cuts
        ]
        self.cuts = [*moved, Cut(span.start, span.tokens)]


class Sessions(_ADAPTER.Rows):  # type: ignore[misc,name-defined]  # as above
    """Rows that sessions hold, and all conversations, with or without a row."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        self.left: list[Slot] = []  # rows without a session that forks still read
        self._ends = 0

    def conversation(self, session: Any) -> Conversation:
        """Return the conversation of an open session; it lives as long as SGLang's `Session`."""
        found: Conversation | None = getattr(session, _CONVERSATION, None)
        if found is None:
            found = Conversation(session)
            setattr(session, _CONVERSATION, found)
        return found

    def new_slot(self, session: Any, **state: Any) -> Slot:
        """Make a slot for a session that gets a row."""
        return Slot(conversation=self.conversation(session), **state)

    def any_holding_kv(self) -> bool:
        return bool(self.left) or bool(super().any_holding_kv())

    # Called by SGLang's cache.

    def try_match_prefix(self, params: Any) -> Any:
        req = params.req
        if req is None:
            return super().try_match_prefix(params)
        setattr(req, SHIFT, 0)
        fork = fork_of(req)
        if fork is not None:
            _ADAPTER.keep_private(req)
            return self._match_fork(fork, params)
        matched = super().try_match_prefix(params)
        if matched is not None:
            setattr(req, SHIFT, self.slots[req.session.session_id].shift)
        return matched

    def shared(self, params: Any) -> Any:
        """Limit what a first turn takes from the tree to what it may publish: the rest of its row can be dropped."""
        req = params.req
        if req is None or req.session is None or not req.session.streaming:
            return params
        return replace(params, key=_ADAPTER.limited(params.key, self.conversation(req.session).first))

    def lost(self, req: Any, slot: Slot) -> bool:
        """Note that a turn gives up its row; returns whether the row is lost, as it is unless the turn completed."""
        aborted = isinstance(req.finished_reason, FINISH_ABORT) or req.to_finish is not None
        if req.finished_reason is not None and not aborted:
            self._ends += 1
            slot.busy, slot.rested, slot.conversation.forked = False, self._ends, None
            if slot.conversation.hold_s:
                self.hold(req.session.session_id, time.monotonic() + slot.conversation.hold_s)
            return False
        session = req.session
        self.give_back(req, slot, aborted=aborted)
        if aborted:
            session.abort_req()
            if req.finished_reason is None:
                req.session = None  # it may come back to be ended, and is no longer the session's turn
        self.release_session(session.session_id)
        return True

    def left_row(self, req: Any) -> None:
        """Note that a request has given up its row."""
        if req.finished() or req.to_finish is not None:  # else it was retracted, and will come back
            fork_over(req)

    def release_session(self, session_id: str) -> None:
        """Free a session's row; the part that forks read stays until they end."""
        slot = self.slots.pop(session_id, None)
        if slot is None:
            return
        if slot.readers:
            self.free_tail(slot, max(slot.protected, *(reader.tokens for reader in slot.readers)))
            self.left.append(slot)
        else:
            self.free_row(slot)

    # Forks.

    def _match_fork(self, fork: Fork, params: Any) -> Any:
        """Match the part of a session's row that a fork can read: whole pages, with a live window before their end."""
        slot, req = self.slots.get(fork.session), params.req
        if slot is None:
            return None
        page = self.cache.page_size
        asked = min(fork.tokens, slot.committed, len(params.key))
        if slot.publishes_prompt and slot.protected < slot.conversation.first // page * page:
            # Publishing may still replace the row's own slots.
            asked = min(asked, slot.protected)
        same = common_prefix(slot.conversation.ids()[:asked], req.origin_input_ids[:asked])
        tokens = same // page * page
        if tokens and self.cache.supports_swa():
            begin = tokens - self.cache.sliding_window_size
            unread = max(begin, slot.protected)
            # A window across a cut would hold tokens that are further away than the window.
            over = any(begin < cut.at < tokens for cut in slot.cuts)
            if over or tokens < slot.protected or slot.slid > unread:
                tokens = 0
        if not tokens:
            return None
        setattr(req, SHIFT, slot.shift_at(same))
        return self.matched(slot, Reader(slot, tokens), tokens)

    def lock(self, reader: Reader) -> None:
        reader.slot.readers.append(reader)

    def unlock(self, reader: Reader) -> None:
        slot = reader.slot
        slot.readers.remove(reader)
        if slot in self.left and not slot.readers:
            self.left.remove(slot)
            self.free_row(slot)

    def window_floor(self, req: Any) -> int | None:
        """Find the lowest position whose window KV a fork of this turn's session still needs, admitted or announced."""
        if req.session is None or not req.session.streaming:
            return None
        slot, talk = self.borrowed_slot(req), self.conversation(req.session)
        reads = [*(reader.tokens for reader in (slot.readers if slot else ())), *talk.forks.values()]
        if talk.forked is not None:
            reads.append(talk.forked)
        return max(0, min(reads) - self.cache.sliding_window_size) if reads else None

    # Between turns.

    def idle(self) -> list[tuple[str, Slot]]:
        """List sessions whose row is not run on, read or held, the least recently used first."""
        found = [
            (name, slot)
            for name, slot in self.slots.items()
            if not slot.busy and not slot.readers and slot.held_until is None
        ]
        return sorted(found, key=lambda each: each[1].rested)

    def idle_tokens(self) -> int:
        """Count the slots of rows on which no turn runs, in whole pages."""
        page = self.cache.page_size
        resting = [*self.left, *(slot for slot in self.slots.values() if not slot.busy)]
        return sum(-(-slot.allocated // page) * page - slot.protected for slot in resting)

    def hold(self, name: str, until: float) -> None:
        """Hold an idle session until its time, its close, or its next turn's admission."""
        self.slots[name].held_until = until

    def let_go(self, name: str) -> None:
        """End a session's hold: it may be released again."""
        self.slots[name].held_until = None

    def end_holds(self) -> None:
        """End the holds whose time is over."""
        now = time.monotonic()
        for name, slot in self.slots.items():
            if slot.held_until is not None and slot.held_until <= now:
                self.let_go(name)

    def release_idle(self, name: str) -> None:
        """Free an idle session's row to make room; its next turn computes its tokens again."""
        self.release_session(name)

    def drop(self, name: str, spans: list[Span]) -> None:
        """Cut spans of resident tokens, whole pages, out of an idle session's row: slots move, no KV does."""
        slot = self.slots[name]
        assert not slot.busy, f"session {name} is cut during a turn"
        assert not slot.readers, f"session {name} is cut while a fork reads it"
        assert spans[0].start >= slot.protected, f"{spans[0]} belongs to the tree"
        assert spans[-1].stop <= slot.committed, f"{spans[-1]} has no KV"
        self.free_spans(slot, spans)
        length, slid = slot.allocated, sum(max(0, min(span.stop, slot.slid) - span.start) for span in spans)
        left = close_up(self.cache.req_to_token_pool.req_to_token, slot.index, length, spans)
        slot.shrink(length - left, slid)
        for span in reversed(spans):
            slot.cut(span)
