# SPDX-License-Identifier: Apache-2.0
"""What the page says first: words, evidence, failures, how many at a time, and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import fixtures
import pages
import pytest

from sqsim.cli.app import app
from sqsim.record.files import write_record
from sqsim.report.data.loading import load
from sqsim.report.data.published import PEAK_TOKENS
from sqsim.report.pages.html_shell import HELD
from sqsim.report.pages.runs_page import build_page
from sqsim.report.sections.answer import answer
from sqsim.report.sections.evidence import RECORDINGS, SESSION_RUNS
from sqsim.report.sections.recall_sweep import _caption

SCHEDULES = Path(__file__).parents[2] / "data" / "sglang-schedules"
CONFORMANCE = Path(__file__).parents[3] / "reports" / "conformance" / "README.md"


def shown(page: str) -> str:
    return re.sub(r"\s+", " ", pages.text(page))


def changed(tmp_path, change) -> Path:
    study = fixtures.study_json()
    change(study)
    return fixtures.write_study(tmp_path / "study", study)


def test_what_is_held_fixed_is_followed_by_what_this_version_has(page):
    assert f"{HELD} This version has neither: live decisions are an aux thread's alone." in shown(page)


def test_the_words_come_before_the_answer_in_six_lines(page):
    words = page[page.index('<dl class="words">') : page.index("</dl>")]
    terms = re.findall("<dt>(.*?)</dt>", words)
    assert terms == ["none / radix", "session", "reprefill, in_place", "oracle", "main, aux, K", "cursor"]
    assert page.index('<dl class="words">') < page.index('id="answer"')


def test_the_number_of_recorded_schedules_is_that_of_the_repository():
    assert len(list(SCHEDULES.rglob("server.json"))) == RECORDINGS


def test_the_number_of_runs_with_sessions_is_that_of_the_repository():
    contended = CONFORMANCE.read_text().split("## Law 11")[1]
    rows = [line.split("|")[1:-1] for line in contended.splitlines() if "-session |" in line]
    assert [row[-1].strip() for row in rows] == ["0"] * SESSION_RUNS


def test_evidence_names_scheduler_sessions_profile_and_decisions(study):
    text = shown(build_page([study / "records" / "sidequest-in_place"]))
    assert "compared with 33 recorded schedules: no difference (sqsim lockstep)" in text
    assert "our plugin's rules, not stock SGLang's; compared with 48 contended runs of the plugin" in text
    assert "Why this profile its terms are measured on the H100" in text
    assert "Decision quality (recall, false rate) assumed : recall 0.85; false rate 0.02" in text


def test_evidence_of_stock_caching_says_nothing_of_sessions_or_decisions(study):
    text = shown(build_page([study / "records" / "none-radix"]))
    assert "compared with 33" in text
    assert "our plugin's rules" not in text
    assert "Decision quality" not in text


def test_answer_is_a_lead_and_at_most_six_sentences_and_loses_none(study):
    panels = load([study], 50).panels
    found = answer(panels)
    assert found.first is not None
    assert len(found.lines) <= 6
    text = shown(build_page([study]))
    for line in (*found.lines, *(line for lines in found.left.values() for line in lines)):
        assert line in text


def test_answer_names_failures_with_their_limit_and_a_fix(tmp_path):
    """The fixtures' records say a context length of 131,072."""

    def change(study):
        for point in study["panels"][0]["points"]:
            point["metrics"] |= {"tasks_failed": 14, "failed_context_limit": 14}

    text = shown(build_page([changed(tmp_path, change)]))
    answered = text[text.index("The answer") : text.index("Accuracy is not predicted here")]
    assert "14 of 424 tasks fail in every run of this panel: context_limit (131,072 tokens)." in answered
    assert "Choose a model with a longer context" in answered
    assert text.count("14 of 424 tasks fail") == 2, "in the answer and in its panel"


def test_failures_of_many_kinds_are_a_range(tmp_path):
    def change(study):
        for place, point in enumerate(study["panels"][0]["points"][:20]):
            point["metrics"] |= {"tasks_failed": place + 1, "failed_context_limit": place + 1}

    text = shown(build_page([changed(tmp_path, change)]))
    assert (
        "1 to 20 of 424 tasks fail in 20 of the 48 runs of this panel: context_limit (131,072 tokens)." in text
    )


def test_unrelated_panels_are_each_answered(tmp_path):
    for place, gpu in enumerate(("h100-sxm", "h200-sxm", "b200-sxm")):
        record = fixtures.make_record(tasks=6, turns=4)
        record.run["scenario"]["engine"]["gpu"] = gpu
        write_record(record, tmp_path / str(place))
    text = shown(build_page([tmp_path / str(place) for place in range(3)]))
    answered = text[text.index("The answer") : text.index("Accuracy is not predicted here")]
    assert all(gpu in answered for gpu in ("h100-sxm", "h200-sxm", "b200-sxm"))
    assert answered.count("%") == answered.count("% of 60,000 tokens"), "no change against anything"


def test_every_command_on_the_page_exists(page, study):
    commands = {command.name for command in app.registered_commands} | {"trace", "synth"}
    for each in (page, build_page([study / "records" / "none-radix"])):
        named = set(re.findall(r"\bsqsim ([a-z]+)\b", pages.text(each))) - {"page"}
        assert named <= commands, named - commands


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ([(0.5, -0.3), (1.0, -0.7)], "Follow the curve to where it enters the band."),
        ([(0.5, -0.3), (1.0, -0.5)], "No curve of this sweep enters the band."),
        ([(0.5, -0.3), (1.0, -0.6)], "Follow the curve to where it enters the band."),
    ],
)
def test_recall_caption_says_whether_the_curve_enters_the_band(curve, says):
    """Published: -65 to -56 % peak tokens."""
    assert _caption(PEAK_TOKENS, [curve]) == says
    assert "band" not in _caption(None, [curve])


def test_waits_for_the_user_are_drawn_and_in_the_legend(tmp_path):
    record = fixtures.make_record(tasks=3, turns=4)
    rows = record.turns.to_pylist()
    gap = 0
    for row in rows:  # from its second step on, the first task's user takes 2.5 s
        if row["task"] == "frames-000" and row["turn"] >= 1:
            for key in ("submit_s", "admit_s", "first_token_s", "end_s", "tool_end_s"):
                row[key] = None if row[key] is None else row[key] + 2.5
            gap += 1
    assert gap
    record.turns = record.turns.from_pylist(rows, schema=record.turns.schema)
    write_record(record, tmp_path / "run")
    waits = [
        trace
        for spec in pages.specs(build_page([tmp_path / "run"]))
        for trace in spec["data"]
        if trace.get("name") == "waits for the user"
    ]
    (trace,) = waits
    assert trace["x"] == [2.5]
    without = fixtures.make_record(tasks=3, turns=4)
    write_record(without, tmp_path / "other")
    assert "waits for the user" not in build_page([tmp_path / "other"])
