"""The sessions of a server with in-place eviction: SGLang's streaming sessions, with four things more.

A session's row of KV can be *cut* between turns, *forked* (read up to a point by another request), *released* while it
is idle, and *outlive* its session for the forks that read it. An aborted or retracted turn loses the row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.base_prefix_cache import MatchResult
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.session.streaming_session import SessionSlot, StreamingSession, _VirtualNode

from sqreal.plugin.compaction import close_up
from sqreal.plugin.conversation import Conversation
from sqreal.plugin.history import Span, common_prefix
from sqreal.plugin.wish import Fork, fork_of

SHIFT = "sqreal_shift"
"""Attribute of a request: how many tokens before its own are gone from the row it runs on."""
_CONVERSATION = "sqreal_conversation"  # attribute of a Session


class Cut(NamedTuple):
    """So many tokens were cut out of a row before what is now its token `at`."""

    at: int
    tokens: int


@dataclass(eq=False)
class Slot(SessionSlot):  # type: ignore[misc]  # SGLang's class, untyped here
    """A session's row of KV. Positions go on counting what was cut out of it."""

    conversation: Any = None
    cuts: list[Cut] = field(default_factory=list)
    busy: bool = True  # does a turn that was admitted run on it?
    rested: int = 0  # when it became idle last, in ends of turns
    readers: list[Reader] = field(default_factory=list)

    @property
    def shift(self) -> int:
        """How many tokens were cut out of the row."""
        return sum(cut.tokens for cut in self.cuts)

    def shift_at(self, tokens: int) -> int:
        """How many were cut out between the first so many tokens of the row."""
        return sum(cut.tokens for cut in self.cuts if cut.at < tokens)

    def cut(self, span: Span) -> None:
        """These tokens are gone from the row now."""
        moved = [
            Cut(cut.at if cut.at <= span.start else max(span.start, cut.at - span.tokens), cut.tokens)
            for cut in self.cuts
        ]
        self.cuts = [*moved, Cut(span.start, span.tokens)]


class Reader(_VirtualNode):  # type: ignore[misc]  # as above
    """What a fork has in place of a node of the tree; locking it keeps the row it reads from being freed or cut."""

    def __init__(self, slot: Slot, tokens: int) -> None:
        self.slot = slot
        self.tokens = tokens


class Sessions(StreamingSession):  # type: ignore[misc]  # as above
    """Every row that a session holds, and every conversation, with or without a row."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache)
        self.left: list[Slot] = []  # rows without a session, which forks still read
        self._ends = 0

    def conversation(self, session: Any) -> Conversation:
        """What an open session was told and has said; it lives as long as SGLang's `Session`."""
        found: Conversation | None = getattr(session, _CONVERSATION, None)
        if found is None:
            found = Conversation(session)
            setattr(session, _CONVERSATION, found)
        return found

    def any_holding_kv(self) -> bool:
        return bool(self.left) or bool(super().any_holding_kv())

    # What SGLang's cache asks.

    def try_match_prefix(self, params: Any) -> Any:
        req = params.req
        if req is None:
            return super().try_match_prefix(params)
        setattr(req, SHIFT, 0)
        fork = fork_of(req)
        if fork is not None:
            req.skip_radix_cache_insert = True  # what it adds is nobody else's
            return self._match_fork(fork, params)
        matched = super().try_match_prefix(params)
        if matched is not None:
            setattr(req, SHIFT, self.slots[req.session.session_id].shift)
        return matched

    def take(self, req: Any) -> None:
        """A first turn gets its row: it becomes the session's."""
        if req.session is None or not req.session.streaming or self.borrowed_slot(req) is not None:
            return
        name = req.session.session_id
        assert name not in self.slots, f"session {name} has a row already"
        slot = Slot(kv=req.kv, publishes_prompt=True, conversation=self.conversation(req.session))
        self._lock_to_slot(req, slot)
        self.slots[name] = slot

    def try_checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> bool:
        """Publish no more of a first turn than the session shares."""
        slot = self.borrowed_slot(req)
        if slot is not None and slot.publishes_prompt:
            up_to = min(up_to, slot.conversation.first)
            if up_to <= slot.kv.cache_protected_len:
                return True
        return bool(super().try_checkpoint(req, up_to=up_to, **kwargs))

    def try_cache_finished_req(self, req: Any) -> bool:
        """A turn gives up its row: the session keeps it when the turn is complete, else it is lost."""
        slot = self.borrowed_slot(req)
        if slot is None:
            return bool(super().try_cache_finished_req(req))
        aborted = isinstance(req.finished_reason, FINISH_ABORT) or req.to_finish is not None
        if req.finished_reason is not None and not aborted:
            self._ends += 1
            slot.busy, slot.rested, slot.conversation.forked = False, self._ends, None
            return bool(super().try_cache_finished_req(req))
        req.detach_kv()
        session = req.session
        if aborted:
            req.release_mm_inputs_on_abort()
            session.abort_req()
            if req.finished_reason is None:
                req.session = None  # it may come back, on its way out, and is the session's turn no more
        self.release_session(session.session_id)
        return True

    def release_session(self, session_id: str) -> None:
        """Free a session's row; what forks read of it stays until they are over."""
        slot = self.slots.pop(session_id, None)
        if slot is None:
            return
        if slot.readers:
            self._free_tail(slot.kv, max(slot.kv.cache_protected_len, *(r.tokens for r in slot.readers)))
            self.left.append(slot)
        else:
            self._free(slot)

    # Forks.

    def _match_fork(self, fork: Fork, params: Any) -> Any:
        """The part of a session's row that a fork can read: whole pages, with a live window before their end."""
        slot, req = self.slots.get(fork.session), params.req
        if slot is None:
            return None
        kv, page = slot.kv, self.cache.page_size
        asked = min(fork.tokens, kv.kv_committed_len, len(params.key))
        if slot.publishes_prompt and kv.cache_protected_len < slot.conversation.first // page * page:
            asked = min(
                asked, kv.cache_protected_len
            )  # publishing may yet put other slots in place of the row's own
        same = common_prefix(slot.conversation.ids()[:asked], req.origin_input_ids[:asked])
        tokens = same // page * page
        if tokens and self.cache.supports_swa():
            begin = tokens - self.cache.sliding_window_size
            unread = max(begin, kv.cache_protected_len)
            # A window that reaches over a cut would hold tokens that are further away than the window.
            over = any(begin < cut.at < tokens for cut in slot.cuts)
            if over or tokens < kv.cache_protected_len or kv.get_evicted_seqlen(ComponentType.SWA) > unread:
                tokens = 0
        if not tokens:
            return None
        setattr(req, SHIFT, slot.shift_at(same))
        node = Reader(slot, tokens)
        return MatchResult(
            device_prefix_len=tokens,
            last_device_node=node,
            last_host_node=node,
            best_match_node=node,
            cache_protected_len=tokens,
        )

    def lock(self, reader: Reader) -> Reader:
        reader.slot.readers.append(reader)
        return reader

    def unlock(self, reader: Reader) -> None:
        slot = reader.slot
        slot.readers.remove(reader)
        if slot in self.left and not slot.readers:
            self.left.remove(slot)
            self._free(slot)

    def window_floor(self, req: Any) -> int | None:
        """The lowest position whose window KV a fork of this turn's session still needs, admitted or to come."""
        slot = self.borrowed_slot(req)
        if slot is None:
            return None
        talk = slot.conversation
        reads = [*(reader.tokens for reader in slot.readers), *talk.forks.values()]
        if talk.forked is not None:
            reads.append(talk.forked)
        return max(0, min(reads) - self.cache.sliding_window_size) if reads else None

    # Between turns.

    def idle(self) -> list[tuple[str, Slot]]:
        """Sessions whose row nobody runs on or reads, the least recently used first."""
        found = [(name, slot) for name, slot in self.slots.items() if not slot.busy and not slot.readers]
        return sorted(found, key=lambda each: each[1].rested)

    def idle_tokens(self) -> int:
        """Slots that rows own on which no turn runs, in whole pages."""
        page = self.cache.page_size
        resting = [*self.left, *(slot for slot in self.slots.values() if not slot.busy)]
        return sum(-(-s.kv.kv_allocated_len // page) * page - s.kv.cache_protected_len for s in resting)

    def release_idle(self, name: str) -> None:
        """Free an idle session's row to make room; its next turn computes its tokens anew."""
        self.release_session(name)

    def drop(self, name: str, spans: list[Span]) -> None:
        """Cut spans of resident tokens, whole pages, out of an idle session's row: slots move, no KV does."""
        slot, kv = self.slots[name], self.slots[name].kv
        assert not slot.busy, f"session {name} is cut during a turn"
        assert not slot.readers, f"session {name} is cut while a fork reads it"
        assert spans[0].start >= kv.cache_protected_len, f"{spans[0]} belongs to the tree"
        assert spans[-1].stop <= kv.kv_committed_len, f"{spans[-1]} has no KV"
        self.cache.free_kv_row(kv, spans)
        table = self.cache.req_to_token_pool.req_to_token
        tokens = kv.kv_allocated_len - close_up(table, kv.req_pool_idx, kv.kv_allocated_len, spans)
        slid = kv.get_evicted_seqlen(ComponentType.SWA)
        if slid:
            dead = sum(max(0, min(span.stop, slid) - span.start) for span in spans)
            kv.set_evicted_seqlen(ComponentType.SWA, slid - dead)
        kv.kv_allocated_len -= tokens
        kv.kv_committed_len -= tokens
        for span in reversed(spans):
            slot.cut(span)

    def _free(self, slot: Slot) -> None:
        kv = slot.kv
        self.cache.unlock(slot.lock)
        slot.lock = None
        self.cache.free_kv_row(kv, [(kv.cache_protected_len, kv.kv_allocated_len)])
        self.cache.req_to_token_pool.free(slot)
        # A turn that waits may have looked at this record already; it finds an empty one.
        kv.mark_kv_released()
        kv.cache_protected_len = kv.cache_inserted_len = kv.kv_committed_len = 0
