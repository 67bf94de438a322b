# SPDX-License-Identifier: Apache-2.0
"""A sweep's points are its scenarios' runs; none runs twice; killed and resumed it leaves the same bytes."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import sqsim.experiments.points as module
from sqsim.base.workers import Workers
from sqsim.cli.app import app
from sqsim.errors import Interrupted, RecordError, ScenarioError
from sqsim.experiments.grid import parse_axis, points
from sqsim.experiments.points import content_key
from sqsim.experiments.sweep import read_sweep, run_sweep
from sqsim.record.files import read_record
from sqsim.record.metrics import metrics
from sqsim.scenario.scenario import load_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain

SCENARIO = (
    "traces: trace.jsonl\nmodel: tiny-llama\nengine: {gpu: cpu, kv_capacity: 20000, max_new_tokens: 64}\n"
)
BOTH = "policy,engine.cache=[{name: none},radix],[{name: sidequest, k: 2, aux_tokens: 20},session]"
TABLES = ("sweep.json", "sweep.parquet", "sweep.csv")


def folder(directory: Path) -> Path:
    write_tasks(directory / "trace.jsonl", [chain(6, name=f"t{n}", uses={4: (0,)}) for n in range(5)])
    (directory / "scenario.yaml").write_text(SCENARIO)
    return directory / "scenario.yaml"


def axes(*texts: str):
    return [parse_axis(text) for text in texts]


def bytes_of(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in TABLES]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load.concurrency=1,2,4", [(1,), (2,), (4,)]),
        ("load.concurrency=[1,2,4]", [(1,), (2,), (4,)]),
        ("seed=0..3", [(0,), (1,), (2,), (3,)]),
        ("load.concurrency=8..30+8", [(8,), (16,), (24,)]),
        ("load.concurrency=8..64*2", [(8,), (16,), (32,), (64,)]),
        ("policy.recall=0.5..0.7+0.1", [(0.5,), (0.6,), (0.7,)]),
        ("policy={name: none},{name: oracle}", [({"name": "none"},), ({"name": "oracle"},)]),
        ("a,b=[1,x],[2,y]", [(1, "x"), (2, "y")]),
        ("a,b=[[1,x],[2,y]]", [(1, "x"), (2, "y")]),
        ("traces=[[a, b], [c]]", [(["a", "b"],), (["c"],)]),
    ],
)
def test_a_grid_is_read(text, expected):
    assert list(parse_axis(text).values) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load.concurrency", "give a key and its values"),
        ("seed=", "no value"),
        ("seed=1,1", "named twice"),
        ("seed=4..1", "LOW first"),
        ("seed=1..4*1", "goes nowhere"),
        ("seed=0..1e9", "more than 100000 values"),
        ("a,b=1,2", r"1 does not set 2 keys; give \[a,b\]"),
        ("a,a=[1,2]", "a key is named twice"),
        ("seed={", "cannot be read as YAML"),
    ],
)
def test_a_wrong_grid_is_named(text, message):
    with pytest.raises(ScenarioError, match=message):
        parse_axis(text)


def test_every_combination_once_and_no_key_by_two_axes():
    assert points(axes("a=1,2", "b=3,4")) == [
        {"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4},
    ]  # fmt: skip
    with pytest.raises(ScenarioError, match="a is set by two axes"):
        points(axes("a=1", "a,b=[2,3]"))


def test_points_are_their_scenarios_runs(tmp_path):
    file = folder(tmp_path)
    run_sweep(file, axes(BOTH, "load.concurrency=1,3"), tmp_path / "out", records=True)
    content = read_sweep(tmp_path / "out")
    assert len(content["points"]) == 4
    alone = load_scenario(
        file,
        ["policy={name: sidequest, k: 2, aux_tokens: 20}", "engine.cache=session", "load.concurrency=3"],
    )
    expected = {name: value for name, value in metrics(simulate(alone)).items() if name != "wall_s"}
    last = content["points"][3]
    assert last["metrics"] == expected
    assert read_record(tmp_path / "out" / last["record"]).run["scenario"] == alone.resolved()
    assert (last["labels"]["policy"], last["labels"]["k"]) == ("sidequest", 2)
    table = pq.read_table(tmp_path / "out" / "sweep.parquet")
    assert table["run_time_s"].to_pylist() == [point["metrics"]["run_time_s"] for point in content["points"]]
    assert table["load.concurrency"].to_pylist() == [1, 3, 1, 3]
    with (tmp_path / "out" / "sweep.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row["run_time_s"]) for row in rows] == table["run_time_s"].to_pylist()
    assert content["evidence"][0]["profile"]


def test_a_finished_point_never_runs_twice(tmp_path, monkeypatch):
    ran: list[int] = []

    def counted(scenario, **_):
        ran.append(scenario.load.concurrency)
        return simulate(scenario)

    monkeypatch.setattr(module, "simulate", counted)
    file, out = folder(tmp_path), tmp_path / "out"
    first = run_sweep(file, axes("load.concurrency=1,2"), out)
    assert (sorted(ran), first.resumed) == ([1, 2], 0)
    again = run_sweep(file, axes("load.concurrency=1..3"), out)  # a wider grid runs what is new
    assert (sorted(ran), again.resumed) == ([1, 2, 3], 2)
    run_sweep(file, axes("load.concurrency=1"), out, records=True)  # a record was not kept before
    assert sorted(ran) == [1, 1, 2, 3]
    run_sweep(file, axes("load.concurrency=2"), out, overwrite=True)
    assert sorted(ran) == [1, 1, 2, 2, 3]


def test_values_that_change_nothing_share_a_run(tmp_path):
    out = tmp_path / "out"
    found = run_sweep(folder(tmp_path), axes("policy={name: keep_last},{name: keep_last, n: 3}"), out)
    assert len(found.points) == 2
    assert len(list((out / "points").iterdir())) == 1


def test_the_key_is_of_all_that_decides_a_run(tmp_path):
    file = folder(tmp_path)
    key = content_key(load_scenario(file))
    assert content_key(load_scenario(file, ["seed=1"])) != key
    assert content_key(load_scenario(file, ["seed=0"])) == key
    write_tasks(tmp_path / "trace.jsonl", [chain(5)])
    module._sum_of.cache_clear()
    assert content_key(load_scenario(file)) != key


def test_a_failing_point_is_reported_and_the_others_go_on(tmp_path):
    file, out = folder(tmp_path), tmp_path / "out"
    done = CliRunner().invoke(
        app, ["sweep", str(file), "--grid", "tasks=2,9", "--output-dir", str(out), "--jobs", "1", "--quiet"]
    )
    assert done.exit_code == 1
    assert "failed: tasks=9: " in done.stdout
    assert "9 tasks are asked for" in done.stdout
    two, nine = read_sweep(out)["points"]
    assert two["metrics"]["tasks_completed"] == 2
    assert nine["metrics"] is None
    assert "resample" in nine["error"]
    assert pq.read_table(out / "sweep.parquet")["status"].to_pylist() == ["done", "failed"]


def test_combinations_that_do_not_exist_fail_alone_but_not_all(tmp_path):
    file, out = folder(tmp_path), tmp_path / "out"
    found = run_sweep(file, axes("policy={name: none},{name: oracle}"), out)
    assert "does not exist with engine.cache" in (found.failed[0].error or "")
    with pytest.raises(ScenarioError, match="unknown key"):
        run_sweep(file, axes("engine.cash=radix,session"), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(RecordError, match="holds no points of a sweep"):
        run_sweep(file, axes("seed=0"), tmp_path)


def test_workers_change_nothing_but_the_time(tmp_path):
    file = folder(tmp_path)
    for jobs in (1, 2):
        run_sweep(file, axes(BOTH, "load.concurrency=1,3"), tmp_path / str(jobs), workers=Workers(jobs))
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")


KILLED = """
import os, signal
from sqsim.experiments import points
from sqsim.cli.main import main
simulate, calls = points.simulate, []
def third(*args, **more):
    calls.append(args)
    if len(calls) == 3:
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
    return simulate(*args, **more)
points.simulate = third
main()
"""
"""The command, killed while it writes its third point."""


def test_killed_half_way_and_resumed_is_the_same(tmp_path):
    file = folder(tmp_path)
    arguments = ["sweep", str(file), "--grid", "seed=0..11", "--set", "tasks=40", "--set", "resample=true"]
    command = [sys.executable, "-c", KILLED, *arguments, "--jobs", "1", "--output-dir", str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("points/*.json")}
    assert len(before) == 2
    for name in ("out", "whole"):
        grid = axes("seed=0..11")
        run_sweep(file, grid, tmp_path / name, changes=["tasks=40", "resample=true"])
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("points/*.json")}
    assert after.items() >= before.items()


def test_an_interrupt_keeps_what_is_finished(tmp_path, monkeypatch):
    def interrupted(scenario, **_):
        if scenario.seed == 2:
            raise KeyboardInterrupt
        return simulate(scenario)

    file, out = folder(tmp_path), tmp_path / "out"
    monkeypatch.setattr(module, "simulate", interrupted)
    with pytest.raises(Interrupted, match=r"2 points were finished .* the same command goes on"):
        run_sweep(file, axes("seed=0..3"), out)
    monkeypatch.setattr(module, "simulate", simulate)
    assert run_sweep(file, axes("seed=0..3"), out).resumed == 2


def another_number(text: str) -> str:
    point = json.loads(text)
    point["metrics"]["output_tok_s"] *= 2
    return json.dumps(point)


def without(*path: str):
    def damage(text: str) -> str:
        point = json.loads(text)
        inner = point
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]
        return json.dumps(point)

    return damage


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:1], lambda text: text[: len(text) // 2], lambda _: "", lambda _: "{}", lambda _: "[" * 10**5,
     without("evidence"), without("time_spent"), without("metrics", "output_tok_s"), another_number],
    ids=["a byte", "half", "empty", "no keys", "deep", "evidence", "time_spent", "a metric", "another number"],
)  # fmt: skip
def test_a_damaged_point_is_named(tmp_path, damage):
    file, out = folder(tmp_path), tmp_path / "out"
    run_sweep(file, axes("seed=0"), out)
    (point,) = out.glob("points/*.json")
    point.write_text(damage(point.read_text()))
    with pytest.raises(RecordError, match=f"{point.name}: damaged; delete it, and the point is run again"):
        run_sweep(file, axes("seed=0"), out)


def test_a_point_under_another_points_name_is_no_result(tmp_path):
    file, out = folder(tmp_path), tmp_path / "out"
    run_sweep(file, axes("load.concurrency=1,3"), out)
    one, other = sorted(out.glob("points/*.json"))
    other.write_bytes(one.read_bytes())
    with pytest.raises(RecordError, match=f"{other.name}: damaged"):
        run_sweep(file, axes("load.concurrency=1,3"), out)


def test_a_wrong_value_is_named_by_the_option_that_gave_it(tmp_path):
    with pytest.raises(ScenarioError, match=r"^--grid engine.page_size=0: engine.page_size: 0 should be"):
        run_sweep(folder(tmp_path), axes("engine.page_size=0"), tmp_path / "out")
    with pytest.raises(ScenarioError, match=r"^--set seed=-1: seed: -1 should be"):
        run_sweep(folder(tmp_path), axes("load.concurrency=2,1"), tmp_path / "out", changes=["seed=-1"])


def test_a_printed_sweep_says_what_its_numbers_rest_on(tmp_path):
    words = [
        "sweep",
        str(folder(tmp_path)),
        "--grid",
        BOTH,
        "--output-dir",
        str(tmp_path / "out"),
        "--jobs",
        "1",
    ]
    said = CliRunner().invoke(app, [*words, "--quiet"], catch_exceptions=False).stdout
    assert said.count("- every number is simulated\n") == 1
    assert said.count("- profile tiny-llama-cpu-roofline: assumed: step; derived: dense") == 1
    assert "- assumed, not calibrated: policy.recall, policy.false_rate, policy.aux_tokens" in said


@pytest.mark.long
def test_the_same_on_ray(tmp_path):
    """A local Ray of two workers; `make test-long` installs it."""
    pytest.importorskip("ray")
    file = folder(tmp_path)
    arguments = ["sweep", str(file), "--grid", BOTH, "--grid", "load.concurrency=1..3", "--jobs", "2"]
    command = [sys.executable, "-c", "from sqsim.cli.main import main; main()", *arguments]
    out = tmp_path / "ray"
    subprocess.run([*command, "--output-dir", str(out), "--cluster", "local"], check=True, timeout=300)
    run_sweep(file, axes(BOTH, "load.concurrency=1..3"), tmp_path / "here")
    assert bytes_of(out) == bytes_of(tmp_path / "here")


def test_ray_that_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(module.SqsimError, match=r"pip install 'sqsim\[cluster\]'"):
        run_sweep(folder(tmp_path), axes("seed=0"), tmp_path / "out", workers=Workers(cluster="local"))
