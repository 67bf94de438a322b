# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md, "Add a policy", followed literally: a package outside the repository brings a policy by its name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import call, task, turn

ROOT = Path(__file__).parents[3]
RECIPE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add a policy")[1].split("\n## ")[0]
MAIN = "from sqsim.cli.main import main; main()"
CHANGE = "policy={name: drop_reread}"
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", RECIPE, re.DOTALL))


def read(cursor: int, path: str):
    return call(cursor, 200, latency_s=0.1).model_copy(update={"tool": "read", "call_text": path})


def agents(number: int):
    """Each reads a, b, a, c, a, b. When it answers, the last response is unread: two older reads of a are superfluous."""
    return [
        task(*(turn(read(index, path)) for index, path in enumerate("abacab")), name=f"t{each}")
        for each in range(number)
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe's files, installed into `site`, and a scenario."""
    folder = tmp_path_factory.mktemp("drop-reread")
    package = folder / "package"
    package.mkdir()
    (package / "drop_reread.py").write_text(BLOCKS["python"])
    (package / "pyproject.toml").write_text(BLOCKS["toml"])
    install = next(line for line in BLOCKS["sh"].splitlines() if "pip install" in line).split()
    assert install[:3] == ["python", "-m", "pip"]
    # `--target`: into a folder of this test, which the commands below have on their path.
    command = [
        sys.executable,
        *install[1:],
        "--no-build-isolation",  # without a network
        "--target",
        str(folder / "site"),
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run(command, cwd=package, check=True, capture_output=True)
    write_tasks(folder / "trace.jsonl", agents(4))
    engine = {"gpu": "cpu", "kv_capacity": 20_000, "max_new_tokens": 64}
    scenario = {"traces": "trace.jsonl", "model": "tiny-llama", "engine": engine, "load": {"concurrency": 2}}
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    return folder


def sqsim(home: Path, *words: str, code: int = 0) -> str:
    """Run a command as its user does, with the package installed; what it printed."""
    path = os.pathsep.join([str(home / "site"), str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        cwd=home,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_it_runs_by_its_name_and_evicts_what_was_read_again(home):
    line = BLOCKS["sh"].splitlines()[1]
    assert line.startswith("sqsim run scenario.yaml --set policy='{name: drop_reread}'")
    sqsim(home, "run", "scenario.yaml", "--set", CHANGE, "--output-dir", "run")
    run = json.loads((home / "run/run.json").read_text())
    assert run["scenario"]["policy"] == {"name": "drop_reread", "keep": 1, "after_eviction": "reprefill"}
    assert run["policy_source"]["class"] == "drop_reread:DropReread"
    found = json.loads(sqsim(home, "run", "scenario.yaml", "--set", CHANGE, "--json"))
    # Known answer: a is opened at turns 0, 2 and 4; each goes once the next was read; b at turn 5 never is.
    assert found["evictions"] == 4 * 2
    sqsim(home, "run", "scenario.yaml", "--output-dir", "none")
    sqsim(home, "report", "run", "none", "-o", "page.html")
    assert "drop_reread / reprefill" in (home / "page.html").read_text()


def test_an_edited_policy_is_not_served_an_old_point(home):
    words = (
        "sweep",
        "scenario.yaml",
        "--set",
        CHANGE,
        "--grid",
        "policy.keep=1,2",
        "--output-dir",
        "sweep",
        "--jobs",
        "2",
    )
    sqsim(home, *words)

    def keys() -> list[str]:
        return [each["key"] for each in json.loads((home / "sweep/sweep.json").read_text())["points"]]

    first = keys()
    sqsim(home, *words)
    assert keys() == first
    file = home / "site/drop_reread.py"
    text = file.read_text()
    try:
        file.write_text(text + "\n# edited\n")
        sqsim(home, *words)
        assert not set(keys()) & set(first)
    finally:
        file.write_text(text)
    points = json.loads((home / "sweep/sweep.json").read_text())["points"]
    assert [each["metrics"]["evictions"] for each in points] == [8, 4]
    assert {each["labels"]["policy"] for each in points} == {"drop_reread"}


def test_a_plan_and_a_region_try_it(home):
    few = ("--k", "2", "--jobs", "1")
    words = (
        "--slo",
        "ttft_s_p99<1000",
        "--agents",
        "2",
        "--seeds",
        "2",
        "--tasks-per-agent",
        "1",
        "--overwrite",
    )
    sqsim(home, "plan", "scenario.yaml", *words, *few, "--output-dir", "plan")
    tried = {each["setting"]: each for each in json.loads((home / "plan/plan.json").read_text())["settings"]}
    assert tried["drop_reread / reprefill"]["free"]
    sqsim(home, "region", "scenario.yaml", "--concurrency", "2", *few, "--output-dir", "region")
    (place,) = json.loads((home / "region/region.json").read_text())["places"]
    assert place["speeds"]["drop_reread / reprefill"] > 0
    for source in ("plan", "region"):
        sqsim(home, "report", source, "-o", f"{source}.html")
    assert "drop_reread / reprefill" in (home / "plan.html").read_text()


def test_a_study_compares_it(home):
    variants = {
        "none / radix": {"policy": {"name": "none"}},
        "drop_reread": {"policy": {"name": "drop_reread"}},
    }
    panel = {
        "id": "both",
        "kind": "single",
        "title": "Both",
        "scenario": "scenario.yaml",
        "variants": list(variants),
    }
    study = {
        "title": "A study",
        "asked": "Which is faster?",
        "commands": [],
        "variants": variants,
        "panels": [panel],
    }
    (home / "study.yaml").write_text(yaml.safe_dump(study))
    sqsim(home, "study", "study.yaml", "--output-dir", "study", "--jobs", "2")
    sqsim(home, "report", "study", "-o", "study.html")
    assert "drop_reread" in (home / "study.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("engine.cache=session", "policy.after_eviction: 'reprefill' does not exist with engine.cache 'session'"),
        ("policy={name: drop_reread, keep: 0}", "policy.keep: 0 should be greater than or equal to 1; allowed: responses"),
        ("policy={name: drop_reread, kept: 2}", "policy.kept: unknown key; did you mean keep?; allowed here: name, keep"),
        ("policy={name: drop_rered}", "'drop_rered' is no policy; did you mean drop_reread?; allowed: none, sidequest"),
    ],
)  # fmt: skip
def test_a_bad_combination_is_refused_by_name(home, change, message):
    text = sqsim(home, "run", "scenario.yaml", "--set", CHANGE, "--set", change, code=2)
    assert message in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("broken", "no_such_module:Policy", "policy 'broken' of package odd (no_such_module:Policy): cannot be imported"),
        ("exits", "exits:Policy", "policy 'exits' of package odd (exits:Policy): cannot be imported: SystemExit: 0; repair"),
        ("nothing", "json:loads", "is no class derived from sqsim.policies.Policy"),
        ("other", "drop_reread:DropReread", "calls itself 'drop_reread'; give the entry point and the class one name"),
        ("drop_reread", "json:loads", "policy 'drop_reread' is in several packages: drop-reread, odd; uninstall all but one"),
        ("none", "json:loads", "policy 'none' is in several packages: sqsim, odd"),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_used_is_named(home, tmp_path, name, target, message):
    info = tmp_path / "odd-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[sqsim.policies]\n{name} = {target}\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    path = [str(home / "site"), str(tmp_path), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "run", "scenario.yaml", "--set", f"policy.name={name}"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert f"--set policy.name={name}: policy.name: " in " ".join(done.stderr.split())
    assert message in " ".join(done.stderr.split())
