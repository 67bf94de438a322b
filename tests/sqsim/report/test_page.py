"""The page as text: its size, its words, that its numbers are those of the JSON, and that it is never empty."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path

import fixtures
import pages
import plotly.graph_objects as go
import pyarrow as pa
import pytest

from sqsim.errors import InputError, RecordError
from sqsim.record import write_record
from sqsim.report import page as report
from sqsim.report.page import HELD, MAX_BYTES, build_page


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return fixtures.write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(study):
    return build_page([study])


def built(tmp_path: Path, change) -> str:
    """The page of the study without records, changed by a function."""
    study = fixtures.study_json()
    for panel in study["panels"]:
        for point in panel["points"]:
            point["record"] = None
    change(study)
    return build_page([fixtures.write_study(tmp_path / "changed", study, records=False)])


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
    """PEERS.md, Reports: values in the HTML must equal the JSON."""
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
    unit = re.compile(r"\(.+\)|tasks at a time|K: turns|recall: probability|^(tokens|tok/s|threads|responses)$")
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


def test_published_numbers_stand_beside_frames_panels_only(page):
    (assumed,) = pages.tables(page, "At an assumed capacity: 24 FRAMES-like tasks that just fill memory")
    assert "published" in assumed["rows"][0][-1]["text"]
    real = pages.tables(page, "A real trace: coding sessions: values")
    assert real
    assert all("published" not in table["rows"][0][-1]["text"] for table in real)


def test_kv_full_is_marked_where_the_stated_rule_first_holds(page):
    """none / radix: demand first exceeds 0.97 of 620,000 tokens at 32 tasks of 24,000."""
    spec = next(
        s
        for s in pages.specs(page)
        if s["layout"]["yaxis"]["title"]["text"] == "KV usage, peak (share of capacity)"
    )
    rings = {t["legendgroup"]: t["x"] for t in spec["data"] if t["mode"] == "markers"}
    assert rings["none / radix"] == [32]
    assert rings["oracle / in_place"] == [96]
    assert "0.97 of capacity" in pages.text(page)


def test_synthesised_references_are_said(page):
    """SPEC.md, sqtrace/1: every page that rests on synthesised references says so."""
    assert "References are synthesised" in re.sub(r"\s+", " ", pages.text(page))


def test_recall_sweep_says_what_reaches_the_published_reduction(page):
    """peak = 1 - 0.65 r (1 - 0.12): -56 % at r = 0.979, -65 % never."""
    shown = re.sub(r"\s+", " ", pages.text(page))
    assert "−56.0 % peak tokens takes a recall of 0.98 (interpolated)" in shown
    assert "−65.0 % peak tokens is not reached in this sweep; the furthest is −57.2 %, at recall 1." in shown


def test_texts_from_files_are_escaped(tmp_path):
    bad = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"

    def change(study):
        study["title"] = study["asked"] = bad
        study["commands"] = [bad]
        for panel in study["panels"]:
            panel |= {"title": bad, "note": bad, "evidence": bad}
            for point in panel["points"]:
                point["labels"]["variant"] += bad

    page = built(tmp_path, change)
    assert "<script>alert" not in page
    assert "<img" not in pages.body(page)
    assert page.count("<script>\n") == 2, "plotly and our own"


def test_records_with_hostile_names_are_escaped(tmp_path):
    record = fixtures.make_record("keep_last / reprefill", tasks=3)
    name = "</script><b>x"
    for table in ("tasks", "turns", "aux", "evictions"):
        rows = getattr(record, table)
        renamed = rows.set_column(
            0, rows.schema.field(0), pa.array([name + task for task in rows["task"].to_pylist()], pa.string())
        )
        setattr(record, table, renamed)
    write_record(record, tmp_path / "run")
    page = build_page([tmp_path / "run"])
    assert "</script><b>" not in pages.body(page)
    assert "&lt;/script&gt;&lt;b&gt;x" in page


def test_missing_metrics_are_not_available_and_never_nan(tmp_path):
    def change(study):
        for panel in study["panels"]:
            for point in panel["points"][::2]:
                point["metrics"] = dict.fromkeys(point["metrics"])
            for point in panel["points"][1::4]:
                point["metrics"]["ttft_s_p50"] = math.nan
                del point["metrics"]["retractions"]

    page = built(tmp_path, change)
    assert "not available" in page
    shown = pages.text(page)
    assert not re.search(r"\b(nan|NaN|None|inf|null)\b", shown)
    assert not re.search(r"\bNaN\b", json.dumps(pages.specs(page)))


@pytest.mark.parametrize("points", [0, 1, 2])
def test_few_points_never_give_an_empty_page(tmp_path, points):
    def change(study):
        for panel in study["panels"]:
            panel["points"] = panel["points"][:points]

    page = built(tmp_path, change)
    shown = pages.text(page)
    assert HELD in shown
    assert len(pages.specs(page)) >= min(points, 1)
    if points == 0:
        assert "Nothing was run" in shown
        assert "This panel holds no run." in shown


def test_a_single_run_makes_a_full_page_that_says_what_it_lacks(study):
    page = build_page([study / "records" / "sidequest-in_place"])
    shown = pages.text(page)
    assert len(pages.specs(page)) == 6, "KV over time, time lines, four distributions"
    assert pages.tables(page, "Evictions of sidequest / in_place")
    assert "There is no K sweep." in shown
    assert "Curves against the number of tasks at a time need several runs." in shown
    assert HELD in shown


def test_several_records_are_compared(study):
    page = build_page([study / "records" / name for name in ("none-radix", "sidequest-in_place")])
    assert pages.tables(page, "The runs: values, and their change against none / radix")


def test_runs_that_evicted_nothing_or_did_nothing_are_named(tmp_path, study):
    page = build_page([study / "records" / "none-radix"])
    assert "Nothing was evicted in: none / radix" in pages.text(page)
    idle = fixtures.make_record(tasks=0)
    idle.engine = idle.engine.slice(0, 0)
    write_record(idle, tmp_path / "idle")
    assert "the engine table of this record has no row" in pages.text(build_page([tmp_path / "idle"]))


def test_failed_tasks_are_named_with_their_reason(tmp_path):
    def change(study):
        study["panels"][0]["points"][5]["metrics"] |= {
            "tasks_failed": 3,
            "failed_context_limit": 3,
            "failed_turn_limit": 0,
        }

    shown = re.sub(r"\s+", " ", pages.text(built(tmp_path, change)))
    assert "none / radix · 96 tasks at a time: 3 (context_limit 3)" in shown


def test_repeated_points_and_lost_records_are_said(tmp_path):
    def change(study):
        panel = study["panels"][0]
        panel["points"].append(copy.deepcopy(panel["points"][0]))
        panel["points"][1]["record"] = "records/gone"

    shown = pages.text(built(tmp_path, change))
    assert "1 points repeat a variant at the same place" in shown
    assert "records/gone is named and cannot be shown" in shown


def test_incomplete_run_is_said(tmp_path):
    write_record(fixtures.make_record(status="incomplete"), tmp_path / "run")
    assert "the run was not completed" in pages.text(build_page([tmp_path / "run"]))


def test_audit_is_capped_aloud_and_keeps_what_was_needed_later(tmp_path):
    record = fixtures.make_record("keep_last / reprefill", tasks=150)
    assert record.evictions.num_rows > report._DETAILS[0].audit_rows
    write_record(record, tmp_path / "run")
    page = build_page([tmp_path / "run"])
    (table,) = pages.tables(page, "Evictions of keep_last / reprefill")
    rows = table["rows"][1:]
    assert len(rows) == report._DETAILS[0].audit_rows
    used = [row[-1]["values"][0] for row in rows]
    wrong = sum(value > 0 for value in record.evictions["used_later"].to_pylist())
    assert sum(value > 0 for value in used) == min(wrong, len(rows))
    assert f"The table holds {len(rows)} of them" in pages.text(page)


def test_page_grows_coarser_before_it_grows_too_large(study, monkeypatch):
    full = len(build_page([study]).encode())
    monkeypatch.setattr(report, "MAX_BYTES", full - 300_000)
    assert len(build_page([study]).encode()) <= full - 300_000
    monkeypatch.setattr(report, "MAX_BYTES", 1_000_000)
    with pytest.raises(InputError, match="keep fewer records"):
        build_page([study])


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match="no directory given"):
        build_page([])
    with pytest.raises(RecordError, match="nowhere"):
        build_page([tmp_path / "nowhere"])
    (tmp_path / "study.json").write_text('{"schema": "sqsim-study/9"}')
    with pytest.raises(RecordError, match=r"study\.json.*sqsim-study/9"):
        build_page([tmp_path])
    (tmp_path / "study.json").write_text('{"schema": "sqsim-study/1", "title": "x", "panels": [{"id": "a"}]}')
    with pytest.raises(RecordError, match=r"panels\.0\.kind"):
        build_page([tmp_path])
