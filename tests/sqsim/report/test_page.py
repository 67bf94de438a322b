# SPDX-License-Identifier: Apache-2.0
"""The page as text: its size, its words, that its numbers are those of the JSON, and that it is never empty."""

from __future__ import annotations

import re

import fixtures
import pages
import plotly.graph_objects as go
import pytest

from sqsim.experiments.intervals import Interval, Intervals, write_intervals
from sqsim.record.files import write_record
from sqsim.report.pages import runs_page as report
from sqsim.report.pages.html_shell import HELD
from sqsim.report.pages.runs_page import MAX_BYTES, build_page


def test_one_file_of_at_most_8_mb_that_asks_nothing_of_the_network(page):
    assert len(page.encode()) <= MAX_BYTES
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:)?//""", markup)
    assert "@import" not in markup
    assert "default-src 'none'" in markup, "the browser itself refuses any request"
    assert page.count("plotly.js v") == 1, "plotly is there once"


def test_first_sentence_says_that_trajectories_are_held_fixed(page):
    """SPEC.md, Words: every report's first sentence."""
    shown = pages.text(page)
    after_title = shown[
        shown.index("SideQuest on 424 FRAMES-like tasks") + len("SideQuest on 424 FRAMES-like tasks") :
    ]
    assert after_title.strip().startswith(HELD)
    assert "Accuracy is not predicted here" in shown


def test_same_sources_same_bytes(study, page):
    assert build_page([study]) == page


@pytest.mark.parametrize(
    ("title", "key"),
    [("Main output throughput (tok/s)", "output_tok_s"), ("Task time, median (s)", "task_s_p50"),
     ("KV usage, peak (share of capacity)", "kv_usage_peak"), ("Retractions (requests)", "retractions")],
)  # fmt: skip
def test_table_under_the_curves_equals_the_json(page, title, key):
    """LAWS.md, "Faults reported of other simulators": values in the HTML must equal the JSON."""
    (table,) = pages.tables(page, "Throughput and task time against tasks at a time (FRAMES-like): every point")
    head, *rows = table["rows"]
    column = [cell["text"] for cell in head].index(title)
    shown = {(row[0]["text"], int(row[1]["text"])): row[column]["values"] for row in rows}
    points = fixtures.study_json()["panels"][0]["points"]
    assert shown == {
        (point["labels"]["variant"], point["labels"]["concurrency"]): [point["metrics"][key]]
        for point in points
    }


def test_side_by_side_values_equal_the_json_at_every_concurrency(page):
    tables = pages.tables(page, "(FRAMES-like): values, and their change against none / radix")
    assert len(tables) == len(fixtures.CONCURRENCIES)
    for table, concurrency in zip(tables, fixtures.CONCURRENCIES, strict=True):
        row = next(row for row in table["rows"] if row[0]["text"].startswith("Peak tokens a task, mean"))
        values = [cell["values"][0] for cell in row[1:7]]
        assert values == [fixtures.metrics_of(v, concurrency)["peak_tokens_mean"] for v in fixtures.VARIANTS]


def test_curves_are_drawn_from_the_exact_values(page):
    points = fixtures.study_json()["panels"][0]["points"]
    spec = next(
        s
        for s in pages.specs(page)
        if s["layout"]["yaxis"]["title"]["text"] == "Main output throughput (tok/s)"
    )
    for variant in fixtures.VARIANTS:
        drawn = next(
            t for t in spec["data"] if t.get("legendgroup") == variant and t["mode"] == "lines+markers"
        )
        mine = [p for p in points if p["labels"]["variant"] == variant]
        assert drawn["x"] == [p["labels"]["concurrency"] for p in mine]
        assert drawn["y"] == [p["metrics"]["output_tok_s"] for p in mine]


def test_plotly_accepts_every_figure_and_every_axis_has_a_unit(page):
    unit = re.compile(r"\(.+\)|tasks at a time|K: turns|^(tokens|tok/s|threads|responses)$")
    for spec in pages.specs(page):
        figure = go.Figure(spec)  # checks every property's name and value
        for axis in (figure.layout.xaxis, figure.layout.yaxis):
            names_things = axis.type == "category" or axis.title.text == ""
            assert names_things or unit.search(axis.title.text), f"an axis without a unit: {axis.title.text!r}"


def test_a_variant_has_one_colour_and_marker_everywhere(page):
    looks: dict[str, set] = {}
    for spec in pages.specs(page):
        for trace in spec["data"]:
            if "legendgroup" in trace:
                looks.setdefault(trace["legendgroup"], set()).add(trace["marker"]["color"])
    assert set(looks) == set(fixtures.VARIANTS)
    assert all(len(colours) == 1 for colours in looks.values())
    pairs = {(p.colour, p.marker) for p in map(report.Palette(fixtures.VARIANTS).look, fixtures.VARIANTS)}
    assert len(pairs) == len(fixtures.VARIANTS)


def test_every_figure_has_a_text_for_those_who_do_not_see_it(page):
    labels = re.findall(r'<div class="plot" role="img" aria-label="([^"]*)"', page)
    assert len(labels) == len(pages.specs(page))
    assert all(len(label) > 60 and "nan" not in label for label in labels)


def test_published_numbers_stand_beside_panels_that_ask_for_them_only(page):
    (assumed,) = pages.tables(page, "At an assumed capacity: 24 FRAMES-like tasks that just fill memory")
    assert "published" in assumed["rows"][0][-1]["text"]
    real = pages.tables(page, "A real trace: coding sessions: values")
    assert real
    assert all("published" not in table["rows"][0][-1]["text"] for table in real)


def test_kv_full_is_marked_where_the_stated_rule_first_holds(page):
    """none / radix: demand first exceeds 0.95 of 620,000 tokens at 32 tasks of 24,000."""
    spec = next(
        s
        for s in pages.specs(page)
        if s["layout"]["yaxis"]["title"]["text"] == "KV usage, peak (share of capacity)"
    )
    rings = {t["legendgroup"]: t["x"] for t in spec["data"] if t["mode"] == "markers"}
    assert rings["none / radix"] == [32]
    assert rings["oracle / in_place"] == [96]
    assert "0.95 of capacity" in pages.text(page)


def test_answer_says_who_is_best_where_kv_fills_what_it_costs_and_whether_it_pays(page):
    """Held against fixtures.metrics_of by hand: SideQuest in place is best at 64, with 1,297 tok/s."""
    shown = re.sub(r"\s+", " ", pages.text(page))
    answer = shown[shown.index("The answer") : shown.index("Accuracy is not predicted here")]
    best = max(
        (fixtures.metrics_of("sidequest / in_place", c)["output_tok_s"], c) for c in fixtures.CONCURRENCIES
    )
    assert (
        f"Highest throughput: sidequest / in_place, {best[0]:,.0f} main output tok/s at {best[1]} tasks"
        in answer
    )
    assert (
        "Best throughput without evicting anything (none / session): 838.5 tok/s at 32 tasks at a time, KV full at 32; "
        f"with sidequest / in_place: {best[0]:,.0f} at {best[1]}, KV full at 64." in answer
    )
    assert "none / radix and none / session from 32 tasks at a time" in shown, "in the panel"
    assert (
        "What sidequest / in_place costs at 32 tasks: its aux threads generate 320,544 tokens, 16.4 %" in answer
    )
    assert (
        "Is it worth it? sidequest / in_place shortens the run against none / radix from 32 tasks on" in answer
    )
    assert "published −65 to −56 %" in answer


def test_synthesised_references_are_said(page):
    """SPEC.md, sqtrace/1: every page that rests on synthesised references says so."""
    assert "References are synthesised" in re.sub(r"\s+", " ", pages.text(page))


def test_recall_sweep_says_what_reaches_the_published_reduction(page):
    """peak = 1 - 0.65 r (1 - 0.12): -56 % at r = 0.979, -65 % never."""
    shown = re.sub(r"\s+", " ", pages.text(page))
    assert "−56.0 % peak tokens takes a recall of 0.98 (interpolated)" in shown
    assert "−65.0 % peak tokens is not reached in this sweep; the furthest is −57.2 %, at recall 1." in shown


def test_recall_sweep_says_what_even_the_oracle_does_not_reach(page):
    """The fixtures' oracle keeps 0.38 of the tokens: -62 %, short of -65 %; its record's references are synthesised."""
    shown = re.sub(r"\s+", " ", pages.text(page))
    assert (
        "Why not? The oracle, which evicts every response right after its last use, reaches −62.0 % peak tokens"
        in shown
    )
    assert "with these synthesised references the rest of the context is not stale" in shown
    levels = [
        trace["y"]
        for spec in pages.specs(page)
        if spec["layout"]["xaxis"].get("title", {}).get("text") == "recall (probability)"
        for trace in spec["data"]
        if trace["legendgroup"] == "oracle / in_place"
    ]
    assert [len(set(level)) for level in levels] == [1, 1], "a level line in both figures"
    assert levels[0] == pytest.approx([-62.0, -62.0])


def test_k_sweep_shows_the_oracle_as_a_level_line(page):
    k_figures = [
        s for s in pages.specs(page) if s["layout"]["xaxis"].get("title", {}).get("text", "").startswith("K:")
    ]
    assert sum(any(t["legendgroup"] == "oracle / in_place" for t in s["data"]) for s in k_figures) == 3


def test_intervals_stand_on_the_page_with_every_digit(tmp_path):
    """Of the record that has some; the others' page says how to get them."""
    write_record(fixtures.make_record("sidequest / in_place"), tmp_path / "sure")
    assert "sqsim run SCENARIO --bands" in build_page([tmp_path / "sure"])
    band = Interval(2356.25, 2301.5, 2477.125, 41.0, 3.5)
    doubts = {"step": "assumed: 50.0% declared"}
    write_intervals(
        tmp_path / "sure", Intervals({"run_time_s": band}, {"run_time_s": [1.0] * 19}, doubts, ["resample"])
    )
    text = build_page([tmp_path / "sure"])
    assert "sqsim run SCENARIO --bands" not in text
    section = text[text.index('<section id="intervals"') :].split("</section>")[0]
    for value in ("2356.25", "2301.5", "2477.125", "41.0", "3.5"):
        assert f'value="{value}"' in section
    assert "resample" in section
    assert "50.0% declared" in section
