# SPDX-License-Identifier: Apache-2.0
"""The section "Measured against simulated": its numbers are those of `sqsim compare`, and every figure says what is which."""

from __future__ import annotations

import copy
import re

import pages
import plotly.graph_objects as go
import pytest

from sqsim.comparison.measured import TIMED
from sqsim.comparison.runs import compare
from sqsim.record.files import read_record, write_record
from sqsim.report.data.measures import TIMED as NAMED
from sqsim.report.html.figure import rounded
from sqsim.report.pages.runs_page import build_page
from tests.sqsim import real_records


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return real_records.write(tmp_path_factory.mktemp("measured"), {"r1": 1.0, "r2": 1.1, "r3": 1.2})


@pytest.fixture(scope="module")
def page(paths):
    return build_page(paths)


@pytest.fixture(scope="module")
def found(paths):
    (pair,) = compare(
        *(read_record(path) for path in paths), names=[path.name for path in paths], directories=paths
    ).measured
    return pair


def shown(page) -> str:
    return re.sub(r"\s+", " ", pages.text(page))


def of_section(page):
    """The figures of the section."""
    begin = page.index('<section id="measured"')
    part = page[begin : page.index("</section>", begin)]
    return pages.specs(f"<header>{part}<noscript>")


def test_every_number_that_is_held_has_a_name():
    assert tuple(NAMED) == TIMED


def test_the_table_is_what_compare_says(page, found):
    (table,) = pages.tables(page, "errors of the simulation. Noise floor: standard deviation (n - 1) of 3 runs")
    rows = {row[0]["text"]: row for row in table["rows"][1:]}
    for key, held in found.timing.metrics.items():
        if held.mean is None and held.simulated is None:
            continue
        row = rows[f"{NAMED[key].name} {NAMED[key].unit}"]
        values = [cell["values"][0] for cell in row[1:6]]
        assert values == [held.mean, held.sd, held.simulated, held.error_percent, held.error_sd]
        assert row[6]["text"] == {True: "yes", False: "no", None: "open"}[held.within]
    assert "measured" in table["rows"][0][1]["text"]
    assert "simulated" in table["rows"][0][3]["text"]


def test_curves_are_what_compare_says_and_say_what_they_are(page, found):
    seconds, over_the_run, _ = of_section(page)
    for spec in (seconds, over_the_run):
        assert [t["name"] for t in spec["data"]] == [
            *("measured: r1", "measured: r2", "measured: r3"),
            "simulated: sim",
        ]
        for trace, curve in zip(spec["data"], found.timing.kv.curves, strict=True):
            assert trace["y"] == rounded([100 * value for value in curve.usage])
    assert max(seconds["data"][2]["x"]) > 1.1 * max(seconds["data"][3]["x"])
    assert over_the_run["data"][2]["x"] == over_the_run["data"][3]["x"]


def test_errors_by_pressure_are_what_compare_says(page, found):
    *_, spec = of_section(page)
    for trace, key in zip(spec["data"], ("ttft", "e2e", "tpot"), strict=True):
        medians = [
            getattr(one, key).median_percent for one in found.timing.by_pressure if getattr(one, key).turns
        ]
        assert trace["y"] == rounded(medians)
    (table,) = pages.tables(page, "errors by KV pressure")
    assert [row[1]["values"][0] for row in table["rows"][1:]] == [
        one.ttft.turns for one in found.timing.by_pressure
    ]


def test_plotly_accepts_the_figures_and_their_axes_have_units(page):
    figures = of_section(page)
    assert len(figures) == 3
    for spec in figures:
        figure = go.Figure(spec)
        for axis in (figure.layout.xaxis, figure.layout.yaxis):
            assert re.search(r"\(.+\)", axis.title.text)


def test_the_answer_is_the_verdict_and_names_no_winner_among_repeats(page):
    text = shown(page)
    answer = text[text.index("The answer") : text.index("Accuracy is not predicted")]
    assert "Token accounting: the same in" in answer
    assert "Timing, simulated against measured: run time −9.1 %" in answer
    assert "KV usage: mean" in answer
    assert "Highest throughput" not in text
    assert (
        "How far is the simulation of none / radix, tiny-llama on cpu from the measurement on a real server"
        in text
    )
    assert "simulated: values" in text, "measured and simulated runs are panels apart"


def test_refused_timing_is_said_on_the_page(tmp_path):
    page = build_page(real_records.write(tmp_path, {"r1": 1.0}, time_scale=0.1))
    assert of_section(page) == []
    text = shown(page)
    assert "Timing is not compared: r1: tools, users and arrivals took 0.1 times as long as recorded" in text
    assert "Token accounting: the same in" in text


def test_of_several_pairs_each_is_said_in_a_line_refused_or_not(tmp_path):
    paths = real_records.write(tmp_path, {"r1": 1.0})
    write_record(real_records.real(read_record(paths[-1]), time_scale=0.1), tmp_path / "hurried")
    text = shown(build_page([*paths, tmp_path / "hurried"]))
    answer = text[text.index("The answer") : text.index("Accuracy is not predicted")]
    assert "(measured r1; simulated sim): Timing, simulated against measured: run time +0.0 %" in answer
    assert "(measured hurried; simulated sim): Timing is not compared: hurried:" in answer


def test_one_run_says_that_its_noise_is_unknown(tmp_path):
    text = shown(build_page(real_records.write(tmp_path, {"r1": 1.2})))
    assert "Noise floor: unknown: one run" in text


def test_a_server_that_was_not_the_scenarios_is_warned_of(tmp_path):
    unlike = {"engine.max_running": {"scenario": 256, "server": 64}}
    text = shown(build_page(real_records.write(tmp_path, {"r1": 1.0}, unlike_the_scenario=unlike)))
    assert "engine.max_running: the server has 64, the simulation 256" in text
    assert "r1: engine.max_running: the scenario states 256, the server has 64" in text


@pytest.mark.parametrize("which", [slice(3), slice(3, None)])
def test_runs_of_one_kind_have_no_such_section(paths, which):
    page = build_page(paths[which])
    assert '<section id="measured"' not in page
    assert "Highest throughput" in page or len(paths[which]) == 1


def test_policies_are_compared_within_what_was_measured_and_what_was_simulated(tmp_path):
    """Two experiments: two pairs, and a panel of each kind that compares the policies."""
    policies = {"none": {"name": "none"}, "keep": {"name": "keep_last", "n": 1, "after_eviction": "reprefill"}}
    for name, policy in policies.items():
        record = real_records.simulated(tmp_path / "trace", policy=copy.deepcopy(policy))
        write_record(record, tmp_path / f"{name}-sim")
        write_record(real_records.real(record, 1.3), tmp_path / f"{name}-real")
        (tmp_path / "trace" / "tasks.jsonl").unlink()
    paths = [tmp_path / f"{name}-{kind}" for kind in ("real", "sim") for name in policies]
    text = shown(build_page(paths))
    assert text.count("Timing, simulated against measured: run time −23.1 %") == 4, (
        "in the answer and the section"
    )
    assert "none / radix, tiny-llama on cpu (measured none-real; simulated none-sim):" in text
    assert "at a time · measured: values, and their change against none / radix" in text
    assert "at a time · simulated: values, and their change against none / radix" in text
    assert "Highest throughput" in text
