# SPDX-License-Identifier: Apache-2.0
"""Page filling, for pages of several slots: keep the fullest pages and fill their holes from the rest.

The fewest rows move: a request that keeps half of its tokens at random moves a quarter of them, not all behind the first
hole. Order within the row is lost, which attention does not mind: a key carries its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from sqkernels import checks
from sqkernels.buffers import Buffers
from sqkernels.errors import KernelInputError
from sqkernels.moves import Moves, move, move_reference
from sqkernels.rows import Rows


@dataclass(frozen=True, eq=False)
class Filled:
    """Result of page filling, on the host.

    pages      freed pages (slot // page size), request after request; they hold nothing that is kept
    lengths    [b] new lengths in tokens
    positions  for each request [new length] int64: the old position of the token now at each place of the row
    moved      rows moved in each buffer
    """

    pages: tuple[int, ...]
    lengths: tuple[int, ...]
    positions: tuple[Tensor, ...]
    moved: int


@dataclass(frozen=True, eq=False)
class _Plan:
    slots: Tensor  # [new length] the row as it will be
    positions: Tensor  # [new length] old positions
    source: Tensor  # [n] slots
    target: Tensor  # [n] slots
    pages: list[int]


def fill_pages(
    buffers: Buffers, rows: Rows, keep: Sequence[Tensor], page_size: int, shared: Sequence[int] | None = None
) -> Filled:
    """Keep some tokens of each request on the fewest pages, by the fewest moves; rows change in place.

    buffers    K and V of the layers
    rows       b rows whose slots lie in whole pages: position p is slot (p mod page_size) of its page
    keep       for each row [length] bool, on the host (the plan is made there, and the rows' slots are waited for)
    shared     for each row, how many of its first tokens lie on pages that the radix tree shares: whole pages, all kept;
               nothing is written there and nothing there is freed. None: no request shares any.
    Raises KernelInputError for rows that are not paged so, slots outside of the buffers, a page that is not shared in two
    places, a mask of another length, a shared token that is not kept.
    Floor: 2 x row bytes x moved rows x buffers: 24 buffers of 1 KB rows, 600 rows: 6 us at 4.8 TB/s.
    Source: our own; SGLang's paged `free()` (srt/mem_cache/allocator/paged.py) frees a whole page for any one of its
    slots, hence pages.
    """
    plans = _plans(buffers, rows, keep, page_size, shared)
    move(buffers, _moves(buffers, plans))
    return _finish(rows, plans)


def fill_pages_reference(
    buffers: Buffers, rows: Rows, keep: Sequence[Tensor], page_size: int, shared: Sequence[int] | None = None
) -> Filled:
    """Carry out the same plan in plain torch."""
    plans = _plans(buffers, rows, keep, page_size, shared)
    move_reference(buffers, _moves(buffers, plans))
    return _finish(rows, plans)


def _plans(
    buffers: Buffers, rows: Rows, keep: Sequence[Tensor], page_size: int, shared: Sequence[int] | None
) -> list[_Plan]:
    page_size = checks.whole("page_size", page_size)
    if page_size < 1:
        raise KernelInputError(f"page_size: {page_size}; give 1 or more slots a page")
    shared = [0] * len(rows) if shared is None else checks.wholes("shared", shared, len(rows))
    keep = checks.each("keep", keep, "masks", len(rows))
    if buffers.slots % page_size:
        raise KernelInputError(
            f"buffers: {buffers.slots} slots are no whole pages of {page_size}; give whole pages"
        )
    plans = []
    pages = []
    for request, length in enumerate(rows.lengths):
        slots = rows.slots(request).cpu().long()
        checks.tensor(f"keep[{request}]", keep[request], (length,), (torch.bool,))
        flags = keep[request].cpu()
        place = torch.arange(length)
        paged = slots[place - place % page_size] + place % page_size
        wrong = place[(slots != paged) | (paged - place % page_size) % page_size != 0]
        if len(wrong):
            at = int(wrong[0])
            raise KernelInputError(
                f"rows[{request}]: position {at} is slot {int(slots[at])}, not on a page of {page_size}; "
                "give rows whose position p is slot p mod page_size of a page"
            )
        outside = slots[(slots < 0) | (slots >= buffers.slots)]
        if len(outside):
            fix = checks.choices(buffers.slots, "slots ")
            raise KernelInputError(f"rows[{request}]: slot {int(outside[0])} of {buffers.slots}; {fix}")
        own = shared[request]
        if own % page_size or not 0 <= own <= length:
            raise KernelInputError(
                f"shared[{request}]: {own} of {length} tokens; give whole pages of {page_size}"
            )
        if not bool(flags[:own].all()):
            at = int(place[:own][~flags[:own]][0])
            raise KernelInputError(
                f"keep[{request}]: position {at} is shared and not kept; keep all {own} shared tokens"
            )
        pages.append(slots[::page_size] // page_size)
        plans.append(_plan(slots, flags, page_size, own))
    _check_alone(pages, [own // page_size for own in shared])
    return plans


def _check_alone(pages: Sequence[Tensor], shared: Sequence[int]) -> None:
    """Refuse a page twice in a row, or in two rows unless both share it: two plans would write to it."""
    for request, own in enumerate(pages):
        values, counts = own.unique(return_counts=True)
        if len(values) < len(own):
            page = int(values[counts > 1][0])
            raise KernelInputError(f"rows[{request}]: page {page} lies there twice; give each page once")
    private = [own[count:] for own, count in zip(pages, shared, strict=True)]
    common = [own[:count].unique() for own, count in zip(pages, shared, strict=True)]
    # a page that rows share counts once, so what counts twice is some row's own
    everywhere = torch.cat([*private, torch.cat(common).unique()]) if pages else torch.empty(0)
    values, counts = everywhere.unique(return_counts=True)
    if len(values) < len(everywhere):
        page = int(values[counts > 1][0])
        first, second = [request for request, own in enumerate(pages) if page in own.tolist()][:2]
        raise KernelInputError(
            f"rows[{second}]: page {page} lies in rows[{first}] too; count it in `shared` of both, or give it to one"
        )


def _plan(slots: Tensor, keep: Tensor, size: int, shared: int) -> _Plan:
    """Choose the pages to keep and the tokens that fill their holes. All pages but the last end up full."""
    left = int(keep[shared:].sum())
    pages = triton.cdiv(len(slots) - shared, size)
    wanted = triton.cdiv(left, size)
    grid = torch.full(
        (pages * size,), -1
    )  # old position on each offset of each private page, -1: nothing kept there
    grid[: len(slots) - shared] = torch.where(keep[shared:], torch.arange(shared, len(slots)), -1)
    grid = grid.view(pages, size)
    chosen, last = _choose(grid >= 0, wanted, left - (wanted - 1) * size)
    order = [*chosen, last] if wanted else []
    dropped = sorted(set(range(pages)) - set(order))
    layout = grid[order].reshape(-1)[:left]
    stray = torch.cat([grid[order].reshape(-1)[left:], grid[dropped].reshape(-1)])
    stray = stray[stray >= 0]
    holes = torch.nonzero(layout < 0)[:, 0]
    base = slots[shared::size]  # first slot of each private page
    new = (base[order][:, None] + torch.arange(size)).reshape(-1)[:left]
    layout[holes] = stray
    return _Plan(
        slots=torch.cat([slots[:shared], new]),
        positions=torch.cat([torch.arange(shared), layout]),
        source=slots[stray],
        target=new[holes],
        pages=[int(base[page]) // size for page in dropped],
    )


def _choose(kept: Tensor, wanted: int, rest: int) -> tuple[list[int], int]:
    """Choose the pages to keep, in order, and the last one, of `rest` tokens, so that the most tokens stay in place.

    kept: [pages, size] bool. For each page as the last one, the others are the fullest; ties go to the earlier page.
    """
    if not wanted:
        return [], -1
    count = kept.sum(1)
    order = count.argsort(descending=True, stable=True)
    rank = order.argsort()
    ahead = torch.cat([count.new_zeros(1), count[order].cumsum(0)])
    others = torch.where(rank < wanted - 1, ahead[wanted] - count, ahead[wanted - 1])
    last = int((kept[:, :rest].sum(1) + others).argmax())
    fullest = [page for page in order.tolist() if page != last][: wanted - 1]
    return sorted(fullest), last


def _moves(buffers: Buffers, plans: Sequence[_Plan]) -> Moves:
    source = torch.cat([plan.source for plan in plans]) if plans else []
    target = torch.cat([plan.target for plan in plans]) if plans else []
    return Moves.of(source, target, buffers.slots, buffers.device)


def _finish(rows: Rows, plans: Sequence[_Plan]) -> Filled:
    for request, plan in enumerate(plans):
        rows.slots(request)[: len(plan.slots)] = plan.slots.to(rows.table)
    return Filled(
        pages=tuple(page for plan in plans for page in plan.pages),
        lengths=tuple(len(plan.slots) for plan in plans),
        positions=tuple(plan.positions for plan in plans),
        moved=sum(len(plan.source) for plan in plans),
    )
