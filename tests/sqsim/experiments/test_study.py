# SPDX-License-Identifier: Apache-2.0
"""A study's points are its scenarios' runs, whatever the number of workers; its capacity search finds what it says."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from sqsim.errors import InputError, RecordError, RunError, ScenarioError
from sqsim.experiments.study import run_study
from sqsim.record.files import read_record
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import load_scenario
from sqsim.simulation.simulate import simulate
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


def test_points_that_are_the_same_run_share_it(tmp_path, monkeypatch):
    study = folder(
        tmp_path, STUDY.replace("policy.k: [1, 4]", "policy.k: [2, 4]")
    )  # K = 2 is in the first panel too
    begun = []
    monkeypatch.setattr(
        "sqsim.experiments.study.simulate", lambda scenario: begun.append(scenario) or simulate(scenario)
    )
    run_study(study, tmp_path / "out", jobs=1, overwrite=False)
    assert len(begun) == 6 + 1
    found = points(tmp_path / "out")
    first, again = found["load", "sidequest / in_place", 3, 2], found["k", "sidequest / in_place", 3, 2]
    assert first["metrics"] | {"regret_tokens": None} == again["metrics"]


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
        (
            ("variants: [sidequest / in_place]", "variants: [nobody]"),
            r"study\.yaml:21: panels\[1\]\.variants: no variant",
        ),
        (
            ("kind: k_sweep", "kind: pie"),
            r"study\.yaml:17: panels\[1\]\.kind: 'pie' should be .*; allowed: what",
        ),
        (("kind: k_sweep", "colour: red"), r"panels\[1\]\.kind: missing; add it: what the page shows"),
        (("title: K", "title: K\n    tint: red"), r"panels\[1\]\.tint: unknown key; allowed here: id, kind, "),
        (
            ("policy.k: [1, 4]", "policy.k: [0]"),
            r"study\.yaml:22: panels\[1\]\.vary\.policy\.k: policy\.k: 0 should be",
        ),
        (("policy.k: [1, 4]", "policy.k: []"), r"vary\.policy\.k: the list is empty"),
        (("policy.k: [1, 4]", "policy.k: [4, 4]"), r"vary\.policy\.k: 4 is named twice"),
        (
            ("set: {load.concurrency: 3}", "set: {load.concurency: 3}"),
            r"yaml:20: panels\[1\]\.set\.load\.concurency: load",
        ),
        (
            ("policy: {name: oracle}", "policy: {name: prophet}"),
            r"yaml:7: variants\.oracle / in_place\.policy: policy\.name",
        ),
        (
            ("keep: {load.concurrency: 3}", "keep: {load.concurrency: 9}"),
            r"keep\.load\.concurrency: 9 is not varied",
        ),
        (
            ("keep: {load.concurrency: 3}", "keep: {policy.n: 3}"),
            r"keep\.policy\.n: 3 is not varied; varied are load",
        ),
        (("id: k", "id: load"), r"panels\[1\]\.id: 'load' is the id of an earlier panel"),
        (
            ("variants: [sidequest / in_place]", "variants: [none / radix, none / radix]"),
            "'none / radix' is named twice",
        ),
        ((STUDY, ""), r"study\.yaml: a study is a mapping with title, "),
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


def test_records_of_names_that_look_alike_are_kept_apart(tmp_path):
    """Whatever a variant is called, its record has a place of its own below the study's."""
    names = ["x y", "x-y", "../../x", "v" * 300, "w" * 300]
    variants = "".join(f"  '{name}': {{seed: {seed}}}\n" for seed, name in enumerate(names))
    listed = ", ".join(f"'{name}'" for name in names)
    study = (
        f"title: t\nasked: a\nvariants:\n{variants}panels:\n"
        f"  - {{id: p, kind: single, title: t, scenario: scenario.yaml, variants: [{listed}], keep: {{}}}}\n"
    )
    run_study(folder(tmp_path, study), tmp_path / "out", jobs=1, overwrite=False)
    [panel] = json.loads((tmp_path / "out" / "study.json").read_text())["panels"]
    kept = [read_record(tmp_path / "out" / point["record"]) for point in panel["points"]]
    assert [record.run["scenario"]["seed"] for record in kept] == list(range(len(names)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out",
        "scenario.yaml",
        "study.yaml",
        "trace.jsonl",
    ]


def test_more_workers_than_points_are_not_started(tmp_path, monkeypatch):
    asked = []
    real = joblib.Parallel
    monkeypatch.setattr(joblib, "Parallel", lambda n_jobs, **more: asked.append(n_jobs) or real(1, **more))
    run_study(folder(tmp_path), tmp_path / "out", jobs=10**6, overwrite=False)
    assert asked == [8]


def test_a_peak_that_no_capacity_has_is_refused(tmp_path):
    """Tasks that all fail before they compute anything use no memory, whatever the capacity."""
    study = STUDY.replace(
        "    keep: {load.concurrency: 3}\n",
        "    fill: {variant: none / radix, at: {engine.context_length: 10}, kv_usage_peak: 0.9}\n",
    )
    with pytest.raises(ScenarioError, match=r"fill\.kv_usage_peak: no capacity was found .* peaks at 0\.9"):
        run_study(folder(tmp_path, study), tmp_path / "out", jobs=1, overwrite=False)
    assert not (tmp_path / "out").exists()


def test_what_a_run_finds_wrong_names_the_point(tmp_path):
    study = folder(tmp_path, STUDY.replace("policy.k: [1, 4]", "tasks: [5, 9]"))
    with pytest.raises(
        InputError, match=r"9 tasks are asked for.*\(in panel k, sidequest / in_place, tasks 9\)"
    ):
        run_study(study, tmp_path / "out", jobs=1, overwrite=False)
    assert not list(tmp_path.glob(".*")), "nothing is left half done"


def test_a_study_that_cannot_be_written_is_a_failed_run(tmp_path, monkeypatch):
    def full(*_args, **_more):
        raise OSError(errno.ENOSPC, "No space left on device")

    study = folder(tmp_path)
    run_study(study, tmp_path / "out", jobs=1, overwrite=False)
    before = (tmp_path / "out" / "study.json").read_bytes()
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match="out: cannot be written: No space left on device; free some space"):
        run_study(study, tmp_path / "out", jobs=1, overwrite=True)
    assert (tmp_path / "out" / "study.json").read_bytes() == before
    with pytest.raises(RecordError, match="no directory can be made in"):
        run_study(study, study / "below", jobs=1, overwrite=False)


def test_a_worker_ends_with_a_study_that_was_killed():
    """The worker holds the pipe that the study was given: it ends only when both have gone."""
    worker = "import os, time, sqsim.base.workers as w; w.end_with(os.getppid()); print('there', flush=True); time.sleep(600)"
    study = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert study.stdout is not None
    assert study.stdout.readline() == "there\n"
    study.kill()
    study.communicate(timeout=60)
