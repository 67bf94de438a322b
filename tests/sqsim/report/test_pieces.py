# SPDX-License-Identifier: Apache-2.0
"""The pieces: how numbers are written, how series are thinned, where a sweep crosses a target, looks of variants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.report.data.labels import flat, labels_of, variant_of
from sqsim.report.data.measures import change, duration, exact, full, percent, share, written
from sqsim.report.data.palette import Palette
from sqsim.report.data.record_view import peak_rows
from sqsim.report.html.figure import rounded
from sqsim.report.html.markup import value_cell
from sqsim.report.sections.recall_sweep import crossing


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0, "0"), (424, "424"), (1_234_567, "1,234,567"), (28_560_000_000, "28,560 M"), (1523.4, "1,523"), (828.06, "828.1"),
     (0.9771, "0.9771"), (0.0140001, "0.014"), (-56.04, "−56.04"), (None, "not available"), (float("nan"), "not available"),
     (float("inf"), "not available"), (True, "yes"), ("auto", "auto"), (9.9996, "10.000"), (1e-12, "0"), (99_999_999, "99,999,999"), (121.0, "121")],
)  # fmt: skip
def test_written(value, text):
    assert written(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.839, "+83.9 %"), (-0.56, "−56.0 %"), (0.0, "±0 %"), (-0.0001, "±0 %"), (None, "—"), (12.5, "+1,250 %")],
)
def test_percent(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(0.3354, "33.5 %"), (1.0, "100.0 %"), (0.0, "0 %"), (1e-5, "under 0.1 %"), (0.0005, "0.1 %"), (None, "—")],
)
def test_share(part, text):
    assert share(part) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.07914, "79.14 ms"), (1.721, "1.721 s"), (2335.2, "2,335 s"), (None, "not available")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_change_needs_two_numbers_and_a_base_that_is_not_zero():
    assert change(1489, 2356) == pytest.approx(-0.368, abs=5e-4)  # METHOD.md: published run times
    assert change(1, 0) is change(None, 1) is change(1, "x") is change(True, 1) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_exact_and_full_lose_no_digit(value):
    assert float(exact(value)) == value
    assert float(full(value).replace(",", "").replace("−", "-")) == value


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=400), st.integers(1, 20))
def test_thinning_keeps_order_ends_peaks_and_troughs(values, pieces):
    used = np.array(values)
    times = np.cumsum(np.ones(len(values)))
    rows = peak_rows(times, used, pieces)
    assert list(rows) == sorted(set(rows.tolist()))
    assert len(rows) <= 2 * pieces + 2
    assert {0, len(values) - 1} <= set(rows.tolist())
    assert used[rows].max() == used.max()
    assert used[rows].min() == used.min()


def test_thinning_an_empty_table_keeps_nothing():
    assert len(peak_rows(np.array([]), np.array([]), 5)) == 0


def test_rounded_for_drawing():
    assert rounded([1.23456789, 3.0, float("nan"), 123456.7]) == [1.23457, 3, None, 123457]


@pytest.mark.parametrize(
    ("target", "x"), [(-0.56, 0.78), (-0.5, 0.75), (0.0, 0.5), (-1.0, 1.0), (-1.1, None), (0.1, None)]
)
def test_crossing_of_a_line(target, x):
    """y = 1 - 2x between 0.5 and 1, with a point at 0.75."""
    found = crossing([(0.5, 0.0), (0.75, -0.5), (1.0, -1.0)], target)
    assert found == (None if x is None else pytest.approx(x))


def test_looks_are_distinct_and_do_not_depend_on_what_else_is_shown():
    names = ["none / radix", "mine", "sidequest / in_place", "yours"]
    palette = Palette(names)
    assert len({palette.look(name) for name in names}) == 4
    assert Palette(["sidequest / in_place"]).look("sidequest / in_place") == palette.look(
        "sidequest / in_place"
    )


def test_labels_of_a_record_come_from_its_scenario():
    run = {
        "scenario": {
            "engine": {"cache": "session"},
            "load": {"concurrency": 8},
            "policy": {"name": "sidequest", "k": 4, "after_eviction": "in_place"},
        }
    }
    labels = labels_of(run)
    assert labels["concurrency"] == 8
    assert variant_of(labels) == "sidequest / in_place"
    assert (
        variant_of(labels_of({"scenario": {"engine": {"cache": "radix"}, "policy": {"name": "none"}}}))
        == "none / radix"
    )
    assert variant_of(labels_of({})) == "run"


def test_flat_reaches_every_value():
    content = {"a": {"b": [1, 2], "c": []}, "d": [{"e": 1}], "f": {}}
    assert dict(flat(content)) == {"a.b": [1, 2], "a.c": [], "d[0].e": 1, "f": {}}


@pytest.mark.parametrize(
    ("value", "text"), [(4.9, "+4.900"), (-4.9, "−4.900"), (0, "0"), (1e-14, "0"), (None, "not available")]
)
def test_a_signed_value_has_its_sign_unless_it_reads_as_nothing(value, text):
    assert value_cell(value, signed=True).endswith(f">{text}</data>")
