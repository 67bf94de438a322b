# SPDX-License-Identifier: Apache-2.0
"""Where SideQuest pays: gains are ratios of whole runs, and the line where they change sign is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sqsim.cli.app import app
from sqsim.experiments.plan.region import crossings
from sqsim.record.metrics import metrics
from sqsim.report.pages.any_page import any_page
from sqsim.scenario.scenario import load_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain


def place(at: int, gain: float, k: int = 4) -> dict:
    entry = {"setting": f"K={k}", "k": k, "against_none": gain, "against_free": None}
    return {"concurrency": at, "values": {}, "sidequest": [entry]}


@pytest.mark.parametrize(
    ("gains", "pays", "start"),
    [
        ([0.1, 0.2], "always", None),
        ([-0.1, -0.2], "never", None),
        ([0.1, -0.1], "not at the most", None),
        ([-0.1, 0.1], "from", 12.0),  # half way from 8 to 16
        ([-0.3, 0.1], "from", 14.0),
    ],
)
def test_the_line_where_aux_threads_cost_more_than_they_save(gains, pays, start):
    (found,) = crossings([place(at, gain) for at, gain in zip((8, 16), gains, strict=True)])
    assert (found["pays"], found["from"]) == (pays, pytest.approx(start) if start else None)


def asked(directory: Path) -> list[str]:
    scenario = str(directory / "scenario.yaml")
    return ["region", scenario, "--concurrency", "1,8", "--k", "2,4", "--grid", "max_turns=3,6"]


@pytest.fixture(scope="module")
def region(tmp_path_factory):
    directory = tmp_path_factory.mktemp("region")
    write_tasks(directory / "trace.jsonl", [chain(6, 200, name=f"t{n}", uses={5: (0,)}) for n in range(8)])
    engine = {"gpu": "cpu", "kv_capacity": 3500, "max_new_tokens": 64}
    content = {"traces": "trace.jsonl", "model": "tiny-llama", "engine": engine}
    (directory / "scenario.yaml").write_text(json.dumps(content))
    words = asked(directory)
    done = CliRunner().invoke(
        app, [*words, "--output-dir", str(directory / "out"), "--jobs", "1", "--quiet"], catch_exceptions=False
    )
    assert done.exit_code == 0
    return directory / "out"


def test_gains_are_ratios_of_whole_runs(region):
    content = json.loads((region / "region.json").read_text())
    assert len(content["places"]) == 4
    last = content["places"][-1]
    assert (last["concurrency"], last["values"]) == (8, {"max_turns": 6})
    policies = {
        "none": ["policy={name: none}"],
        "mine": ["policy={name: sidequest, k: 2, after_eviction: in_place}", "engine.cache=session"],
    }
    speed = {
        name: metrics(
            simulate(
                load_scenario(region.parent / "scenario.yaml", ["load.concurrency=8", "max_turns=6", *words])
            )
        )["output_tok_s"]
        for name, words in policies.items()
    }
    entry = next(each for each in last["sidequest"] if each["setting"] == "sidequest K=2 / in_place")
    assert entry["against_none"] == pytest.approx(speed["mine"] / speed["none"] - 1, rel=1e-12)
    assert entry["against_free"] <= entry["against_none"], "none is a free setting too"


def test_what_its_numbers_rest_on_is_said_on_the_page_and_beside_the_table(region):
    words = asked(region.parent)
    said = CliRunner().invoke(app, [*words, "--output-dir", str(region), "--jobs", "1", "--quiet"]).stdout
    assert (
        "- every number is simulated\n- profile tiny-llama-cpu-roofline: assumed: step; derived: dense" in said
    )
    assert "- assumed, not calibrated: policy.recall, policy.false_rate, policy.aux_tokens" in said
    harmful = [
        each for each in json.loads((region / "region.json").read_text())["places"] if each["best_free_harm"]
    ]
    page = any_page([region])
    assert harmful, "the trace needs its first response in the last turn, and keep_last has cleared it"
    for each in harmful:
        rival = f"{each['best_free']} ({each['best_free_harm']:.1%} of what it evicts is needed later)"
        assert rival in said
        assert rival in page
    for word in (
        "On what evidence",
        "every number is",
        "tiny-llama-cpu-roofline",
        "not calibrated",
        "Provenance",
    ):
        assert word in page


def test_its_page_has_a_map_for_each_rival_and_the_numbers_of_its_json(region):
    page = any_page([region])
    assert page.count('role="img" aria-label="') == 2 * 2 * 2
    assert "Where SideQuest pays" in page
    content = json.loads((region / "region.json").read_text())
    for each in content["places"]:
        for entry in each["sidequest"]:
            assert f'value="{json.dumps(100 * entry["against_none"])}"' in page
