# SPDX-License-Identifier: Apache-2.0
"""The KV pool: counts of free slots, and the slots that each row holds.

A *slot* holds one token's KV of the full-attention layers, a *window slot* that of the sliding-window layers. A
hybrid pool has both kinds, and every allocation takes from both (rule 38). A *row* is the list of slots of one
context. Slots are counted, not numbered: nothing in the scheduler depends on which slot is taken. Rows take and give
back whole pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqsim.models.serving.limits import Limits

if TYPE_CHECKING:
    from sqsim.models.serving.radix import Lock


@dataclass(slots=True, eq=False)
class Row:
    """The KV of one context, in tokens from its start.

    [0, shared) belongs to the tree, or to the session that a fork reads; [shared, length) belongs to this row. The
    row's own window slots below `slid` have been freed.
    """

    length: int
    shared: int
    slid: int = 0
    lock: Lock | None = None  # protects the tree-owned prefix from eviction
    held: bool = False  # True once slots were allocated: the row then counts as one of `max_running`


class Pool:
    """Counts of free slots, free window slots and free rows."""

    def __init__(self, limits: Limits) -> None:
        self.page = limits.page_size
        self.kv_capacity = self.free = limits.kv_capacity
        self.hybrid = limits.swa_capacity is not None
        self.swa_capacity = self.window_free = limits.swa_capacity or 0
        self.window = limits.swa_window or 0
        self.rows_free = limits.max_running

    def ceil(self, tokens: int) -> int:
        """Round tokens up to whole pages."""
        return -(-tokens // self.page) * self.page

    def floor(self, tokens: int) -> int:
        """Round tokens down to whole pages."""
        return tokens // self.page * self.page

    def fits(self, slots: int) -> bool:
        """Whether `slots` slots of both kinds are free."""
        return self.free >= slots and (not self.hybrid or self.window_free >= slots)

    def take(self, slots: int) -> None:
        """Allocate slots of both kinds; the caller has made room before."""
        assert self.fits(slots), (
            f"{slots} slots wanted, {self.free} free and {self.window_free} window slots free"
        )
        self.free -= slots
        if self.hybrid:
            self.window_free -= slots

    def give(self, slots: int, window_slots: int) -> None:
        """Free slots of each kind."""
        self.free += slots
        if self.hybrid:
            self.window_free += window_slots

    def extend(self, row: Row, length: int) -> None:
        """Grow a row to `length` tokens."""
        self.take(self.ceil(length) - self.ceil(row.length))
        row.length = length
        if not row.held:
            row.held = True
            self.rows_free -= 1

    def owned(self, row: Row) -> int:
        """Count the slots that belong to the row alone."""
        return self.ceil(row.length) - row.shared

    def owned_window(self, row: Row) -> int:
        """Count the live window slots that belong to the row alone."""
        return self.ceil(row.length) - max(row.shared, row.slid) if self.hybrid else 0

    def trim(self, row: Row, length: int) -> None:
        """Free the row's slots beyond `length`; the page that contains its new end stays."""
        end, keep = self.ceil(row.length), self.ceil(length)
        if end > keep:
            self.give(end - keep, end - max(keep, row.slid))
        row.length = min(row.length, length)
        row.slid = min(row.slid, row.length)

    def slide(self, row: Row, length: int, floor: int | None = None) -> None:
        """Free the row's window slots that a token at `length` no longer sees (rule 39).

        Keeps whole pages, at least a window of tokens, and everything from `floor` on (a fork still reads that).
        """
        if length - self.window <= row.slid:
            return
        row.slid = max(row.slid, row.shared)
        keep_from = length - self.ceil(max(self.window, self.page))
        if floor is not None:
            keep_from = min(keep_from, floor)
        slid = self.floor(max(row.slid, keep_from))
        self.window_free += slid - row.slid
        row.slid = slid

    def release(self, row: Row) -> None:
        """Free all slots that the row owns, and the row itself."""
        self.give(self.owned(row), self.owned_window(row))
        row.length = row.shared
        if row.held:
            row.held = False
            self.rows_free += 1
