# SPDX-License-Identifier: Apache-2.0
"""Awkward sources: hostile texts, missing values, few points, lone runs, failures; the page is never empty or wrong."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from pathlib import Path

import fixtures
import pages
import pyarrow as pa
import pytest

from sqsim.errors import InputError, RecordError
from sqsim.record.files import write_record
from sqsim.report.pages import runs_page as report
from sqsim.report.pages.html_shell import HELD
from sqsim.report.pages.runs_page import build_page

TITLE = "24 tasks of frames.jsonl.zst · gpt-oss-20b on h100-sxm · 6 at a time"


def built(tmp_path: Path, change) -> str:
    """The page of the study without records, changed by a function."""
    study = fixtures.study_json()
    for panel in study["panels"]:
        for point in panel["points"]:
            point["record"] = None
    change(study)
    return build_page([fixtures.write_study(tmp_path / "changed", study, records=False)])


def test_a_careless_winner_is_not_named_without_what_it_needed_later(tmp_path):
    """The fixtures' keep_last evicts 2,880 responses of which 1,310 are needed later; SideQuest 2,917 and 230."""

    def change(study):
        for point in study["panels"][0]["points"]:
            if point["labels"]["policy"] == "keep_last":
                point["metrics"]["output_tok_s"] = 9000.0

    shown = re.sub(r"\s+", " ", pages.text(built(tmp_path, change)))
    first, second = shown.split("Highest throughput:")[1].split("Highest of the careful", 1)
    assert "keep_last / reprefill, 9,000" in first
    assert "But 1,310 of its 2,880 evicted responses (45.5 %) were needed later" in first
    assert second.strip().startswith("(at most 10 % of what it evicts is needed later): sidequest / in_place,")
    assert (
        "230 of its 2,917 evicted responses (7.9 %) were needed later"
        in second.split("The hindsight oracle")[0]
    )
    assert "less, as it keeps what is needed later" in second


def test_a_careful_winner_is_named_with_what_it_needed_later_and_alone(study):
    shown = re.sub(r"\s+", " ", pages.text(build_page([study])))
    assert "Highest throughput: sidequest / in_place" in shown
    assert "230 of its 2,917 evicted responses (7.9 %) were needed later" in shown
    assert "Highest of the careful" not in shown


def test_policy_that_does_not_pay_is_told_so(tmp_path):
    def change(study):
        for point in study["panels"][0]["points"]:
            if point["labels"]["policy"] == "sidequest":
                point["metrics"]["run_time_s"] = 1e5

    shown = re.sub(r"\s+", " ", pages.text(built(tmp_path, change)))
    assert "Is it worth it? Not here: sidequest / in_place never shortens the run by 2.0 % or more" in shown


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
    assert "There is no K sweep: it needs a study" in shown
    assert "Curves against the number of tasks at a time need several runs" in shown
    assert HELD in shown


def test_several_records_are_compared(study):
    page = build_page([study / "records" / name for name in ("none-radix", "sidequest-in_place")])
    assert pages.tables(page, f"{TITLE}: values, and their change against none / radix")


def test_runs_of_one_policy_are_all_shown_and_told_apart(tmp_path):
    for k in (4, 8):
        record = fixtures.make_record("sidequest / in_place")
        record.run["scenario"]["policy"]["k"] = k
        write_record(record, tmp_path / f"k{k}")
    page = build_page([tmp_path / "k4", tmp_path / "k8"])
    (table,) = pages.tables(page, f"{TITLE}: values")
    assert [cell["text"] for cell in table["rows"][0][1:3]] == [
        "sidequestin_place (k = 4)",
        "sidequestin_place (k = 8)",
    ]


def test_runs_that_evicted_nothing_or_did_nothing_are_named(tmp_path, study):
    page = build_page([study / "records" / "none-radix"])
    assert "Nothing was evicted in: none / radix" in pages.text(page)
    idle = fixtures.make_record(tasks=0)
    idle.engine = idle.engine.slice(0, 0)
    write_record(idle, tmp_path / "idle")
    assert "the engine table of this record is empty" in pages.text(build_page([tmp_path / "idle"]))


def test_failed_tasks_are_named_with_their_reason(tmp_path):
    def change(study):
        study["panels"][0]["points"][5]["metrics"] |= {
            "tasks_failed": 3,
            "failed_context_limit": 3,
            "failed_turn_limit": 0,
        }

    shown = re.sub(r"\s+", " ", pages.text(built(tmp_path, change)))
    assert "none / radix · 96 tasks at a time: 3 of 424 tasks fail, context_limit." in shown


def test_failures_that_every_run_shares_are_said_once(tmp_path):
    def change(study):
        for point in study["panels"][0]["points"]:
            point["metrics"] |= {"tasks_failed": 3, "failed_context_limit": 3}
        for point in study["panels"][4]["points"][:2]:
            point["metrics"] |= {"tasks_failed": 1}

    shown = re.sub(r"\s+", " ", pages.text(built(tmp_path, change)))
    assert "3 of 424 tasks fail in every run of this panel: context_limit." in shown
    assert "none / radix · 8, 24 tasks at a time: 1 of 424 tasks fails, no reason given." in shown


def test_ranges_left_come_with_their_share_of_steps_the_most_frequent_first(tmp_path):
    """The fixtures' engine tables hold 1,500 rows of 3 steps each."""
    for variant, left in (
        ("none / radix", {"decode: a": 900, "moe: b": 1}),
        ("sidequest / in_place", {"moe: b": 1799}),
    ):
        write_record(fixtures.make_record(variant, out_of_range=left), tmp_path / variant[:4])
    page = build_page([tmp_path / "none", tmp_path / "side"])
    (table,) = pages.tables(page, "Steps outside the range over which a term was measured")
    assert [[cell["text"] for cell in row] for row in table["rows"][1:]] == [
        ["moe: b", "1,800", "20.0 %"],
        ["decode: a", "900", "10.0 %"],
    ]
    assert "moe in 20.0 % of steps, decode in 10.0 % of steps" in pages.text(page)


def test_traces_are_named_by_file_then_content_then_place(tmp_path):
    trace = {"path": "../../out/demo/tasks.jsonl.zst", "sha256": "a021a055fd4719c2"}
    write_record(fixtures.make_record(traces=[trace]), tmp_path / "run")
    shown = re.sub(r"\s+", " ", pages.text(build_page([tmp_path / "run"])))
    assert "24 tasks of tasks.jsonl.zst run on" in shown
    assert "tasks.jsonl.zst sha256 a021a055fd47 … ../../out/demo/tasks.jsonl.zst" in shown.replace("…", " …")


def test_repeated_points_are_shown_and_lost_records_are_said(tmp_path):
    def change(study):
        panel = study["panels"][0]
        panel["points"].append(copy.deepcopy(panel["points"][0]))
        panel["points"][1]["record"] = "records/gone"

    shown = pages.text(built(tmp_path, change))
    assert "none / radix (run 49)" in shown
    assert "records/gone cannot be shown" in shown


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
    assert f"The table lists {len(rows)} of them" in pages.text(page)


def test_page_grows_coarser_before_it_grows_too_large(study, monkeypatch):
    full = len(build_page([study]).encode())
    monkeypatch.setattr(report, "MAX_BYTES", full - 300_000)
    assert len(build_page([study]).encode()) <= full - 300_000
    monkeypatch.setattr(report, "MAX_BYTES", 1_000_000)
    with pytest.raises(InputError, match="keep fewer records"):
        build_page([study])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_study_with_what_is_no_number_is_refused(tmp_path, value):
    def change(study):
        study["panels"][0]["points"][0]["metrics"]["ttft_s_p50"] = value

    with pytest.raises(
        RecordError, match=r"study\.json: cannot be read as a study \((NaN|Infinity) is not a number"
    ):
        built(tmp_path, change)


def test_a_name_that_no_page_can_show_is_refused(tmp_path):
    place = tmp_path / os.fsdecode(b"caf\xe9")
    write_record(fixtures.make_record(tasks=2), place)
    with pytest.raises(InputError, match=r"caf\\udce9: the name is not UTF-8.*rename the directory") as error:
        build_page([place])
    str(error.value).encode()


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
