# SPDX-License-Identifier: Apache-2.0
"""A task's main context: its pieces, the positions of their KV, and the eviction of a cursor.

Coordinates are *resident*: token positions in the prompt as the server would see it now, without evicted
tokens. The first `kv_tokens` positions have KV. Evicting a cursor removes its call and its response
(METHOD.md, "Words"); reasoning, text and template tokens stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sqsim.models.serving.tokens import Run, Segments, Tokens, concat, count, normal, whole
from sqsim.trace.schema import Answer, Prefix, Question, Reset, Turn


class Span(NamedTuple):
    """Resident tokens `[start, stop)`."""

    start: int
    stop: int


class Eviction(NamedTuple):
    """Tokens of call and response that one cursor lost; with whole pages, possibly fewer than it had."""

    cursor: int
    tokens: int
    opened: int


class Clearing(NamedTuple):
    """One clearing of the context: the evicted cursors, and the sorted, disjoint spans of KV to drop in place."""

    evicted: tuple[Eviction, ...]
    spans: tuple[Span, ...]


@dataclass(slots=True)
class Cursor:
    """An open tool response: the turn whose call opened it, the tokens of call and response, and the tool's call."""

    cursor: int
    opened: int
    tokens: int
    tool: str
    arguments: str | None


class _Piece(NamedTuple):
    run: Run
    cursor: int | None
    stripped: bool  # True for reasoning that the next prompt leaves out
    turn: int = -1  # the turn that added it; -1: before the first turn, or the rest of an evicted piece


class Context:
    """The pieces of one task's main context, oldest first.

    `page_size` and `tail_tokens` limit an in-place drop: it takes whole pages inside a span, and only
    spans with at least `tail_tokens` of KV after them (a sliding-window layer still reads the rest;
    SGLANG.md, "Guards"). A cursor that has to wait is kept and cleared at a later boundary.
    """

    def __init__(
        self,
        segments: Segments,
        prefix: Prefix,
        question: Question,
        *,
        in_place: bool,
        page_size: int = 1,
        tail_tokens: int = 0,
    ) -> None:
        self._segments = segments
        self._in_place = in_place
        self._page = page_size if in_place else 1
        self._tail = tail_tokens if in_place else 0
        self._head = whole(segments.shared(f"prefix:{prefix.id}", prefix.token_ids), prefix.tokens)
        self._restarted(self._question(question))
        self._open: dict[int, Cursor] = {}
        self._wanted: set[int] = set()
        self.kv_tokens = 0
        self.shift = 0
        self.first_prompt_tokens = self.tokens
        """Tokens that every branch of this context starts with: prefix and question, or prefix and summary."""

    def _question(self, question: Question) -> Tokens:
        if question.hash_ids is None or question.block_tokens is None:
            return whole(self._segments.fresh(question.token_ids), question.tokens)
        # A block is named by a hash of itself and all text before it (FORMATS.md, mooncake_trace): equal ids, equal text.
        left, runs = question.tokens, []
        for hash_id in question.hash_ids:
            size = min(question.block_tokens, left)
            runs.append(whole(self._segments.shared(f"block:{hash_id}"), size))
            left -= size
        return concat(*runs, whole(self._segments.fresh(), left))

    def _restarted(self, after_head: Tokens) -> None:
        """Reset the context to the prefix and the tokens after it."""
        self._start = concat(self._head, after_head)
        self._prompt: Tokens | None = self._start
        self._pieces = [_Piece(run, None, False) for run in self._prompt]
        self._strips = False  # does the next prompt leave out any piece?
        self.tokens = count(self._prompt)
        """Length of the prompt of the next main step."""

    @property
    def prompt(self) -> Tokens:
        """The prompt of the next main step."""
        if self._prompt is None:
            self._prompt = normal([piece.run for piece in self._pieces])
        return self._prompt

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """Open cursors, oldest first."""
        return tuple(self._open.values())

    def plan(self, step: Turn | Answer) -> Tokens:
        """Build the output that a main step will generate: reasoning, text, then one piece a call."""
        parts = [(step.reasoning_tokens, step.reasoning_token_ids), (step.text_tokens, step.text_token_ids)]
        if isinstance(step, Turn):
            parts += [(call.call_tokens, call.call_token_ids) for call in step.calls]
        self._planned = [whole(self._segments.fresh(token_ids), tokens) for tokens, token_ids in parts]
        return concat(*self._planned)

    def extend(self, index: int, turn: Turn, *, reasoning_kept: bool) -> None:
        """Append output, template and responses of main step `index`, whose tools have returned."""
        reasoning, text, *calls = self._planned
        fresh = self._segments.fresh
        added: list[tuple[Tokens, int | None]] = [(reasoning, None), (text, None)]
        added += [(tokens, call.cursor) for tokens, call in zip(calls, turn.calls, strict=True)]
        added.append((whole(fresh(turn.template_token_ids), turn.template_tokens), None))
        added += [
            (whole(fresh(call.response_token_ids), call.response_tokens), call.cursor) for call in turn.calls
        ]
        stripped = not reasoning_kept and bool(reasoning)
        self._strips = self._strips or stripped
        self._pieces += [_Piece(run, None, stripped, index) for run in reasoning]
        self._pieces += [_Piece(run, cursor, False, index) for tokens, cursor in added[1:] for run in tokens]
        self.tokens += sum([count(tokens) for tokens, _ in added])
        if self._prompt is not None:
            self._prompt = concat(self._prompt, *[tokens for tokens, _ in added])
        for call in turn.calls:
            if call.cursor is not None:
                tokens = call.call_tokens + call.response_tokens
                self._open[call.cursor] = Cursor(call.cursor, index, tokens, call.tool, call.call_text)

    def strip(self) -> bool:
        """Leave out stripped reasoning, as the chat template does; returns whether that rewrote the history."""
        if not self._strips:
            return False
        self._strips = False
        self._cut([piece for piece in self._pieces if not piece.stripped])
        return True

    def _cut(self, kept: list[_Piece]) -> None:
        self._pieces, self._prompt = kept, None
        self.tokens = count(self.prompt)

    def restart(self, reset: Reset) -> None:
        """Apply a compaction of the recording: prefix and summary remain, every cursor closes."""
        summary = whole(self._segments.fresh(reset.keep_token_ids), reset.keep_tokens)
        self._restarted(summary)
        self._open.clear()
        self._wanted.clear()
        self.kv_tokens = self.shift = 0
        self.first_prompt_tokens = self.tokens

    def compact(self, summary: Tokens, newest: int) -> Clearing:
        """Replace all but the start of the context and the pieces of turn `newest` by a summary."""
        kept = [piece for piece in self._pieces if piece.turn == newest]
        gone = [cursor for cursor in self._open.values() if cursor.opened != newest]
        start = concat(self._start, summary)
        self._cut([*(_Piece(run, None, False) for run in start), *kept])
        for cursor in gone:
            del self._open[cursor.cursor]
        self._wanted &= self._open.keys()
        self.rewritten()
        self.first_prompt_tokens = count(start)
        return Clearing(tuple(Eviction(each.cursor, each.tokens, each.opened) for each in gone), ())

    def rewritten(self) -> None:
        """Note that the server has no KV of this context (a rewrite, a new session): positions start at 0 again."""
        self.kv_tokens = self.shift = 0

    def evict(self, cursors: Iterable[int]) -> Clearing:
        """Clear the named cursors and those that had to wait before; unknown or closed ones change nothing."""
        self._wanted |= {cursor for cursor in cursors if cursor in self._open}
        if not self._wanted:
            return Clearing((), ())
        ready = self._ready()
        self._wanted -= ready
        page = self._page if self.kv_tokens else 1
        kept: list[_Piece] = []
        lost = dict.fromkeys(sorted(ready), 0)
        spans: list[Span] = []
        position = 0
        for piece in self._pieces:
            size = piece.run.stop - piece.run.start
            if piece.cursor not in ready:
                kept.append(piece)
                position += size
                continue
            # Whole pages inside the piece are evicted; the partial pages at its ends stay as plain context.
            start = -(-position // page) * page
            stop = max(start, (position + size) // page * page)
            if stop > start:
                lost[piece.cursor] += stop - start
                spans.append(Span(start, stop))
                kept += self._residue(piece.run, start - position, stop - position)
            else:
                kept.append(_Piece(piece.run, None, False))
            position += size
        self._cut(kept)
        if not self._in_place or not self.kv_tokens:
            spans = []  # the next prompt leaves these tokens out; there is no KV to clear
        freed = sum(stop - start for start, stop in spans)
        self.kv_tokens -= freed
        self.shift += freed
        evicted = tuple(
            Eviction(cursor, tokens, self._open.pop(cursor).opened) for cursor, tokens in lost.items()
        )
        return Clearing(evicted, _merged(spans))

    @staticmethod
    def _residue(run: Run, start: int, stop: int) -> list[_Piece]:
        ends = (Run(run.segment, run.start, run.start + start), Run(run.segment, run.start + stop, run.stop))
        return [_Piece(end, None, False) for end in ends if end.stop > end.start]

    def _ready(self) -> set[int]:
        """Select the wanted cursors whose last token has the tail's KV after it; all, where there is no KV to drop."""
        if not self._in_place or not self.kv_tokens:
            return set(self._wanted)
        ends: dict[int, int] = {}
        position = 0
        for piece in self._pieces:
            position += piece.run.stop - piece.run.start
            if piece.cursor in self._wanted:
                ends[piece.cursor] = position
        return {cursor for cursor in self._wanted if ends.get(cursor, 0) + self._tail <= self.kv_tokens}


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].stop == span.start:
            merged[-1] = Span(merged[-1].start, span.stop)
        else:
            merged.append(span)
    return tuple(merged)
