"""A task's main context: which pieces it holds, where their KV lies, and what evicting a cursor removes.

Coordinates are *resident* ones: token positions in the prompt as the server would see it now, evicted
tokens gone. The first `kv_tokens` of them have KV. A cursor's eviction unit is its call and its response
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
    """What one cursor lost: `tokens` of call and response; with whole pages only, less than it had."""

    cursor: int
    tokens: int
    opened: int


class Clearing(NamedTuple):
    """One clearing of the context: the cursors, and the spans of KV to drop in place, sorted and disjoint."""

    evicted: tuple[Eviction, ...]
    spans: tuple[Span, ...]


@dataclass(slots=True)
class Cursor:
    """An open tool response: the turn whose call opened it, the tokens of its call and response, and what was called."""

    cursor: int
    opened: int
    tokens: int
    tool: str
    arguments: str | None


class _Piece(NamedTuple):
    run: Run
    cursor: int | None
    stripped: bool  # reasoning that the next prompt leaves out
    turn: int = -1  # the turn that brought it; -1: before the first, or what is left of one


class Context:
    """The pieces of one task's main context, oldest first.

    `page_size` and `tail_tokens` state what an in-place drop may touch: whole pages inside a span, and only
    spans with at least `tail_tokens` of KV behind them (a sliding-window layer still reads the rest;
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
        """What every branch of this context starts with: prefix and question, or prefix and summary."""

    def _question(self, question: Question) -> Tokens:
        if question.hash_ids is None or question.block_tokens is None:
            return whole(self._segments.fresh(question.token_ids), question.tokens)
        # Blocks named by a hash of all that precedes them (FORMATS.md, mooncake_trace): equal ids, equal text.
        left, runs = question.tokens, []
        for hash_id in question.hash_ids:
            size = min(question.block_tokens, left)
            runs.append(whole(self._segments.shared(f"block:{hash_id}"), size))
            left -= size
        return concat(*runs, whole(self._segments.fresh(), left))

    def _restarted(self, behind_head: Tokens) -> None:
        """Nothing but the prefix and what follows it."""
        self._start = concat(self._head, behind_head)
        self._prompt: Tokens | None = self._start
        self._pieces = [_Piece(run, None, False) for run in self._prompt]
        self._strips = False  # does any piece go with the next prompt?
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
        """The output that a main step will generate: reasoning, text, then one piece a call."""
        parts = [(step.reasoning_tokens, step.reasoning_token_ids), (step.text_tokens, step.text_token_ids)]
        if isinstance(step, Turn):
            parts += [(call.call_tokens, call.call_token_ids) for call in step.calls]
        self._planned = [whole(self._segments.fresh(token_ids), tokens) for tokens, token_ids in parts]
        return concat(*self._planned)

    def extend(self, index: int, turn: Turn, *, reasoning_kept: bool) -> None:
        """Main step `index` ended and its tools returned: append output, template and responses."""
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
        """Leave out stripped reasoning, as the chat template does; True when that rewrote the history."""
        if not self._strips:
            return False
        self._strips = False
        self._cut([piece for piece in self._pieces if not piece.stripped])
        return True

    def _cut(self, kept: list[_Piece]) -> None:
        self._pieces, self._prompt = kept, None
        self.tokens = count(self.prompt)

    def restart(self, reset: Reset) -> None:
        """Compaction in the recording: prefix and a summary remain, every cursor closes."""
        summary = whole(self._segments.fresh(reset.keep_token_ids), reset.keep_tokens)
        self._restarted(summary)
        self._open.clear()
        self._wanted.clear()
        self.kv_tokens = self.shift = 0
        self.first_prompt_tokens = self.tokens

    def compact(self, summary: Tokens, newest: int) -> Clearing:
        """A summary takes the place of all but what the context started with and the pieces of turn `newest`."""
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
        """The server forgot this context's KV (a rewrite or a new session): positions start at 0 again."""
        self.kv_tokens = self.shift = 0

    def evict(self, cursors: Iterable[int]) -> Clearing:
        """Clear the named cursors, and those that had to wait before; unknown or closed ones change nothing."""
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
            # Whole pages inside the piece go; what is left of the pages at its ends stays, as plain context.
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
            spans = []  # the next prompt leaves them out; there is no KV to clear
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
        """Of the wanted cursors, those whose last token has KV with the tail behind it (all, without KV to touch)."""
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
