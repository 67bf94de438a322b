"""A study's points are its scenarios' runs, whatever the number of workers; its capacity search finds what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqsim.errors import RecordError, ScenarioError
from sqsim.metrics import metrics
from sqsim.record import read_record
from sqsim.scenario import load_scenario
from sqsim.simulate import simulate
from sqsim.study import run_study
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain

SCENARIO = (
    "traces: trace.jsonl\nmodel: tiny-llama\nengine: {gpu: cpu, kv_capacity: 20000, max_new_tokens: 64}\n"
)
STUDY = """
title: Small
asked: Does it work?
variants:
  none / radix: {engine.cache: radix, policy: {name: none}}
  sidequest / in_place: {engine.cache: session, policy: {name: sidequest, k: 2, aux_tokens: 20}}
  oracle / in_place: {engine.cache: session, policy: {name: oracle}}
panels:
  - id: load
    kind: concurrency
    title: Load
    scenario: scenario.yaml
    variants: [none / radix, sidequest / in_place, oracle / in_place]
    vary: {load.concurrency: [1, 3]}
    keep: {load.concurrency: 3}
  - id: k
    kind: k_sweep
    title: K
    scenario: scenario.yaml
    set: {load.concurrency: 3}
    variants: [sidequest / in_place]
    vary: {policy.k: [1, 4]}
"""


def folder(directory: Path, study: str = STUDY) -> Path:
    write_tasks(directory / "trace.jsonl", [chain(6, name=f"t{n}", uses={4: (0,)}) for n in range(5)])
    (directory / "scenario.yaml").write_text(SCENARIO)
    (directory / "study.yaml").write_text(study)
    return directory / "study.yaml"


def points(path: Path) -> dict[tuple, dict]:
    panels = json.loads((path / "study.json").read_text())["panels"]
    return {
        (panel["id"], p["labels"]["variant"], p["labels"]["concurrency"], p["labels"]["k"]): p
        for panel in panels
        for p in panel["points"]
    }


def test_points_are_their_scenarios_runs(tmp_path):
    run_study(folder(tmp_path), tmp_path / "out", jobs=1, overwrite=False)
    found = points(tmp_path / "out")
    assert len(found) == 6 + 2
    point = found["load", "sidequest / in_place", 3, 2]
    alone = load_scenario(
        tmp_path / "scenario.yaml",
        ["engine.cache=session", "policy={name: sidequest, k: 2, aux_tokens: 20}", "load.concurrency=3"],
    )
    expected = {k: v for k, v in metrics(simulate(alone)).items() if k != "wall_s"}
    assert {k: v for k, v in point["metrics"].items() if k not in {"wall_s", "regret_tokens"}} == expected
    kept = read_record(tmp_path / "out" / point["record"])
    assert kept.run["scenario"] == alone.resolved()
    assert found["load", "sidequest / in_place", 1, 2]["record"] is None
    assert found["k", "sidequest / in_place", 3, 4]["labels"]["recall"] == 0.85


def test_regret_is_against_the_oracle_at_the_same_load(tmp_path):
    run_study(folder(tmp_path), tmp_path / "out", jobs=1, overwrite=False)
    found = points(tmp_path / "out")
    assert found["load", "oracle / in_place", 3, None]["metrics"]["regret_tokens"] == 0
    assert found["load", "none / radix", 3, None]["metrics"]["regret_tokens"] > 0
    assert (
        found["k", "sidequest / in_place", 3, 4]["metrics"]["regret_tokens"] is None
    )  # that panel has no oracle


def test_workers_change_nothing_but_the_time(tmp_path):
    study = folder(tmp_path)
    for jobs in (1, 2):
        run_study(study, tmp_path / str(jobs), jobs=jobs, overwrite=False)
    one, two = (points(tmp_path / str(jobs)) for jobs in (1, 2))
    for point in (*one.values(), *two.values()):
        del point["metrics"]["wall_s"]
    assert one == two


def test_fill_finds_the_capacity_at_which_a_variant_peaks_as_asked(tmp_path):
    study = STUDY.replace(
        "    keep: {load.concurrency: 3}\n",
        "    fill: {variant: oracle / in_place, at: {load.concurrency: 3}, kv_usage_peak: 0.9}\n",
    )
    run_study(folder(tmp_path, study), tmp_path / "out", jobs=1, overwrite=False)
    found = points(tmp_path / "out")["load", "oracle / in_place", 3, None]["metrics"]
    assert found["kv_usage_peak"] == pytest.approx(0.9, abs=5e-3)
    assert found["kv_capacity_tokens"] < 20000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("variants: [sidequest / in_place]", "variants: [nobody]"), "nobody"),
        (("kind: k_sweep", "kind: pie"), "panels"),
        (("policy.k: [1, 4]", "policy.k: [0]"), "policy.k"),
        (("title: Small", "tilte: Small"), "tilte"),
    ],
)
def test_a_wrong_study_is_refused_by_name_and_leaves_nothing(tmp_path, change, message):
    study = folder(tmp_path, STUDY.replace(*change))
    with pytest.raises(ScenarioError, match=message):
        run_study(study, tmp_path / "out", jobs=1, overwrite=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scenario.yaml", "study.yaml", "trace.jsonl"]


def test_nothing_is_replaced_unasked(tmp_path):
    study = folder(tmp_path)
    run_study(study, tmp_path / "out", jobs=1, overwrite=False)
    with pytest.raises(RecordError, match="--overwrite"):
        run_study(study, tmp_path / "out", jobs=1, overwrite=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(RecordError, match="not a study"):
        run_study(study, tmp_path / "mine", jobs=1, overwrite=True)
    run_study(study, tmp_path / "out", jobs=1, overwrite=True)
