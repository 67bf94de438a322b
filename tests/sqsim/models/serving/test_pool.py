# SPDX-License-Identifier: Apache-2.0
"""Slots are counted in whole pages, and nothing is lost (law 2)."""

from __future__ import annotations

import pytest

from sqsim.models.serving.limits import Limits
from sqsim.models.serving.pool import Pool, Row


def test_a_row_takes_and_gives_whole_pages():
    pool = Pool(Limits(160, page_size=16))
    row = Row(0, 0)
    pool.extend(row, 17)
    assert (pool.free, pool.rows_free, pool.owned(row)) == (128, 255, 32)
    pool.extend(row, 32)  # fits in the page that is open
    assert pool.free == 128
    pool.trim(row, 5)
    assert (row.length, pool.free) == (5, 144)
    pool.release(row)
    assert (pool.free, pool.rows_free) == (160, 256)


def test_a_hybrid_pool_takes_from_both():
    """Rule 38: every allocation takes from both pools."""
    pool = Pool(Limits(1000, swa_capacity=800, swa_window=127))
    pool.extend(Row(0, 0), 300)
    assert (pool.free, pool.window_free) == (700, 500)
    assert pool.fits(500)
    assert not pool.fits(501)


def test_sliding_frees_window_slots_behind_the_window_only():
    """Rule 39: an unfinished request frees its window slots below len - 1 - W."""
    pool = Pool(Limits(1000, swa_capacity=800, swa_window=127))
    row = Row(0, 0)
    pool.extend(row, 300)
    pool.slide(row, 299)
    assert (row.slid, pool.window_free, pool.free) == (172, 672, 700)
    assert pool.owned_window(row) == 128
    pool.slide(row, 299)  # nothing more to free
    assert row.slid == 172


def test_a_cut_below_the_slid_part_frees_only_live_window_slots():
    pool = Pool(Limits(1000, swa_capacity=800, swa_window=127))
    row = Row(0, 0)
    pool.extend(row, 300)
    pool.slide(row, 299)
    pool.trim(row, 100)
    assert (row.slid, pool.free, pool.window_free) == (100, 900, 800)
    pool.release(row)
    assert (pool.free, pool.window_free) == (1000, 800)


def test_sliding_stops_at_what_a_fork_reads():
    pool = Pool(Limits(1000, swa_capacity=800, swa_window=127))
    row = Row(0, 0)
    pool.extend(row, 400)
    pool.slide(row, 399, floor=100)
    assert row.slid == 100


def test_sliding_keeps_whole_pages():
    pool = Pool(Limits(1600, swa_capacity=800, swa_window=127, page_size=16))
    row = Row(0, 0)
    pool.extend(row, 400)
    pool.slide(row, 399)
    assert row.slid == (399 - 128) // 16 * 16


def test_more_than_there_is_cannot_be_taken():
    with pytest.raises(AssertionError, match="101 slots wanted, 100 free"):
        Pool(Limits(100)).take(101)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"kv_capacity": 100, "page_size": 16}, "kv_capacity 100 is no multiple of page_size 16"),
        ({"kv_capacity": 0}, "kv_capacity is 0"),
        ({"kv_capacity": 100, "swa_capacity": 80}, "swa_capacity needs swa_window"),
        (
            {"kv_capacity": 160, "swa_capacity": 90, "swa_window": 9, "page_size": 16},
            "swa_capacity 90 is no multiple",
        ),
    ],
)
def test_impossible_limits_are_named(limits, message):
    with pytest.raises(AssertionError, match=message):
        Limits(**limits)
