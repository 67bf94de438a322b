# SPDX-License-Identifier: Apache-2.0
"""Pages of plans, sweeps and directories of runs: what the JSON has, nothing empty, nothing from the network."""

from __future__ import annotations

import json

import pages
import pytest
import test_browser as browser

from sqsim.errors import RecordError
from sqsim.experiments.grid import parse_axis
from sqsim.experiments.plan.plan import Ask, run_plan
from sqsim.experiments.plan.region import run_region
from sqsim.experiments.plan.search import Load
from sqsim.experiments.plan.slo import Slo
from sqsim.experiments.points import read_json
from sqsim.experiments.sweep import run_sweep
from sqsim.report.pages.any_page import any_page
from sqsim.report.pages.sweep_page import pareto
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain

BOTH = "policy,engine.cache=[{name: none},radix],[{name: sidequest, k: 2, aux_tokens: 20},session]"


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    directory = tmp_path_factory.mktemp("scenario")
    write_tasks(directory / "trace.jsonl", [chain(6, 200, name=f"t{n}", uses={5: (0,)}) for n in range(6)])
    content = {
        "traces": "trace.jsonl",
        "model": "tiny-llama",
        "engine": {"gpu": "cpu", "kv_capacity": 3500, "max_new_tokens": 64},
    }
    (directory / "scenario.yaml").write_text(json.dumps(content))
    return directory / "scenario.yaml"


@pytest.fixture(scope="module")
def plan(scenario):
    slos = (Slo("ttft_s_p99", "<", 0.08), Slo("task_s_p90", "<", 60.0))
    ask = Ask(scenario, slos, Load(agents=12), ks=(2,), seeds=2, prices={"cpu": 2.0})
    run_plan(ask, scenario.parent / "plan")
    return scenario.parent / "plan"


@pytest.fixture(scope="module")
def sweep(scenario):
    axes = [parse_axis(BOTH), parse_axis("load.concurrency=1,6")]
    run_sweep(scenario, axes, scenario.parent / "sweep", records=True)
    return scenario.parent / "sweep"


@pytest.fixture(scope="module")
def one_point(scenario):
    run_sweep(scenario, [parse_axis("seed=0")], scenario.parent / "one")
    return scenario.parent / "one"


@pytest.fixture(scope="module")
def region(scenario):
    run_region(scenario, (2, 6), [], scenario.parent / "region", ks=(2,))
    return scenario.parent / "region"


def test_a_plans_table_has_the_numbers_of_its_json(plan):
    content, page = read_json(plan, "plan.json", "sqsim-plan/1"), any_page([plan])
    (found,) = pages.tables(page, "Fewest GPUs under each setting")
    head, *rows = found["rows"]
    column = {cell["text"]: place for place, cell in enumerate(head)}
    assert len(rows) == len(content["settings"])
    for row, setting in zip(rows, content["settings"], strict=True):
        assert row[column["GPUs"]]["values"] == [setting["gpus"]]
        assert row[column["Cost (an hour)"]]["values"] == [setting["cost_per_h"]]
        assert row[column["Carries (agents on one replica)"]]["values"] == [setting["share"]]
    for sentence in content["sentences"]:
        assert sentence.replace("\u00a0", " ") in " ".join(pages.text(page).split()).replace(" :", ":").replace(
            " ?", "?"
        )


def test_a_plans_curves_have_the_runs_of_its_json_and_their_bound(plan):
    content, page = read_json(plan, "plan.json", "sqsim-plan/1"), any_page([plan])
    first, second, where = pages.specs(page)
    for spec, key, bound in ((first, "ttft_s_p99", 0.08), (second, "task_s_p90", 60.0)):
        *curves, level = spec["data"]
        assert set(level["y"]) == {bound}
        ran = [each for each in content["settings"] if each["runs"]]
        assert len(curves) == len(ran)
        for curve, setting in zip(curves, ran, strict=True):
            runs = sorted(setting["runs"], key=lambda run: run["share"])
            assert curve["y"] == [run["metrics"][key] for run in runs]
        assert key in spec["layout"]["yaxis"]["title"]["text"]
        assert "(s)" in spec["layout"]["yaxis"]["title"]["text"]
    assert where["layout"]["xaxis"]["title"]["text"] == "mean seconds of a task"


def test_a_plan_that_finds_nothing_says_what_binds(scenario, tmp_path):
    ask = Ask(scenario, (Slo("task_s_p90", "<", 0.001),), Load(agents=2), ks=(2,), seeds=2)
    run_plan(ask, tmp_path / "plan")
    text = pages.text(any_page([tmp_path / "plan"]))
    assert "No number of GPUs keeps this SLO" in text
    assert "there was nothing to draw" in text


def test_a_sweeps_table_has_the_numbers_of_its_json(sweep):
    content, page = read_json(sweep, "sweep.json", "sqsim-sweep/1"), any_page([sweep])
    (found,) = pages.tables(page, "Metrics of every point")
    head, *rows = found["rows"]
    column = [cell["text"] for cell in head].index("Main output throughput (tok/s)")
    assert [row[column]["values"][0] for row in rows] == [
        point["metrics"]["output_tok_s"] for point in content["points"]
    ]
    (figure,) = pages.specs(page)
    drawn = sorted(value for trace in figure["data"] for value in trace["y"])
    assert drawn == sorted(point["metrics"]["output_tok_s"] for point in content["points"])


def test_one_point_and_failed_points_make_no_empty_page(scenario, one_point, tmp_path):
    assert len(pages.specs(any_page([one_point]))) == 1
    run_sweep(scenario, [parse_axis("tasks=2,99")], tmp_path / "some")
    text = pages.text(any_page([tmp_path / "some"]))
    assert "99 tasks are asked for" in text
    run_sweep(scenario, [parse_axis("tasks=99")], tmp_path / "none")
    text = pages.text(any_page([tmp_path / "none"]))
    assert "No point was finished" in text
    assert "99 tasks are asked for" in text


def test_the_front_is_what_none_beats():
    def point(speed, memory, used_later):
        return {"metrics": {"output_tok_s": speed, "kv_usage_peak": memory, "evicted_then_used": used_later}}

    fast, small, safe = point(10, 0.9, 0), point(5, 0.1, 3), point(5, 0.5, 0)
    beaten, twin = point(9, 0.9, 0), point(10, 0.9, 0)
    assert pareto([fast, beaten, small, safe, twin]) == [fast, small, safe, twin]


def test_an_index_lists_runs_and_names_the_rest(sweep, plan):
    page = any_page([sweep.parent])
    (found,) = pages.tables(page, "Runs below this directory")
    assert len(found["rows"]) == 1 + 4
    text = " ".join(pages.text(page).split())
    assert "plan: plan" in text
    assert "sweep: sweep" in text
    with pytest.raises(RecordError, match="holds no run, study, sweep or plan"):
        any_page([sweep / "points"])


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium or chrome on the PATH: no page was opened")
@pytest.mark.parametrize("width", [1400, 480])
@pytest.mark.parametrize("name", ["plan", "sweep", "one_point", "region"])
def test_pages_are_drawn_and_ask_nothing_of_the_network(name, width, request, tmp_path):
    page = any_page([request.getfixturevalue(name)])
    found, console, dom = browser.visit(page, tmp_path, width)
    assert console == []
    assert "data-failed" not in dom
    assert found["figures"] == len(pages.specs(page)) > 0
    assert (found["undrawn"], found["shown"], found["digits"], found["wide"]) == (0, True, True, True)
    assert set(found["tables"]) <= {"table"}, "no style of something else makes a table anything but a table"
    for figure in pages.specs(page):
        assert all(figure["layout"][axis].get("title", {}).get("text") for axis in ("xaxis",))
    assert dom.count('role="img" aria-label="') == found["figures"]


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium or chrome on the PATH: no page was opened")
def test_an_index_asks_nothing_of_the_network(sweep, tmp_path):
    found, console, dom = browser.visit(any_page([sweep.parent]), tmp_path)
    assert console == []
    assert "data-failed" not in dom
    assert (found["digits"], found["wide"]) == (True, True)
