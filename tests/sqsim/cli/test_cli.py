# SPDX-License-Identifier: Apache-2.0
"""The commands as a script sees them: what is on stdout, exit codes, files (SPEC.md, "Flags")."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sqsim import __version__
from sqsim.trace.store import read_tasks, write_tasks
from tests.sqsim.tasks import chain

ROOT = Path(__file__).parents[3]

KEYS = """tasks_total tasks_completed tasks_failed run_time_s output_tokens aux_output_tokens output_tok_s total_tok_s
output_tok_s_peak kv_capacity_tokens kv_usage_peak kv_usage_mean peak_tokens_mean peak_tokens_p50 peak_tokens_completed_mean
kv_reads_main_tokens kv_reads_aux_tokens prefill_tokens cached_tokens evicted_tokens evictions evicted_then_used evicted_uses
aux_spawned aux_applied aux_late aux_cancelled retractions ttft_s_p50 ttft_s_p90 ttft_s_p99 tpot_s_p50 tpot_s_p90 tpot_s_p99
task_s_p50 task_s_p90 task_s_p99 simulated wall_s kv_held_peak aux_malformed reclaimed_tokens released_sessions""".split()


def sqsim(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from sqsim.cli.main import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    write_tasks(tmp_path / "trace.jsonl", [chain(4, name=f"t{n}", uses={3: (0,)}) for n in range(3)])
    path = tmp_path / "scenario.yaml"
    path.write_text("traces: trace.jsonl\nmodel: tiny-llama\nengine: {gpu: cpu, kv_capacity: 4000}\n")
    return path


def test_json_has_every_key_that_scripts_rely_on(scenario):
    done = sqsim("run", scenario, "--json", "--quiet", cwd=scenario.parent)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not set(KEYS) - set(found)
    assert found["simulated"] is True
    assert found["tasks_completed"] == 3


def test_run_compare_report(scenario):
    base = scenario.parent
    in_place = ("--set", "engine.cache=session", "--set", "policy={name: sidequest, k: 2}")
    assert sqsim("run", scenario, "--output-dir", "none", cwd=base).returncode == 0
    assert sqsim("run", scenario, *in_place, "--output-dir", "sq", cwd=base).returncode == 0
    again = sqsim("run", scenario, "--output-dir", "none", cwd=base)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    compared = sqsim("compare", "none", "sq", "--json", cwd=base)
    assert json.loads(compared.stdout)["metrics"]["evictions"]["values"][0] == 0
    assert sqsim("report", "none", "sq", "-o", "page.html", cwd=base).returncode == 0
    assert (base / "page.html").read_text().startswith("<!")
    assert sqsim("compare", "none", cwd=base).returncode == 2


def test_trace_verbs(tmp_path):
    assert (
        sqsim("trace", "synth", "--tasks", "4", "--scale", "0.1", "-o", "t.jsonl.zst", cwd=tmp_path).returncode
        == 0
    )
    assert len(list(read_tasks(tmp_path / "t.jsonl.zst"))) == 4
    assert json.loads(sqsim("trace", "validate", "t.jsonl.zst", "--json", cwd=tmp_path).stdout)["tasks"] == 4
    assert json.loads(sqsim("trace", "stats", "t.jsonl.zst", "--json", cwd=tmp_path).stdout)["tasks"] == 4
    assert (
        sqsim("trace", "export", "t.jsonl.zst", "--to", "mooncake", "-o", "m.jsonl", cwd=tmp_path).returncode
        == 0
    )
    named = ("--to", "agentic_mooncake", "--block-tokens", "64", "-o", "a.jsonl", "--json")
    exported = json.loads(sqsim("trace", "export", "t.jsonl.zst", *named, cwd=tmp_path).stdout)
    assert exported["lost"]["a reference to a response is left out or another"] > 0
    assert exported["assumed"]["a task without an arrival starts at 0"] == 4
    again = json.loads(sqsim("trace", "import", "a.jsonl", "-o", "b.jsonl", "--json", cwd=tmp_path).stdout)
    assert (again["tasks"], again["warnings"]) == (4, {})
    refused = sqsim("trace", "export", "t.jsonl.zst", "--to", "vidur", "-o", "v.jsonl", cwd=tmp_path)
    assert (refused.returncode, "use mooncake, aiperf" in refused.stderr) == (2, True)
    done = sqsim("trace", "import", ROOT / "traces" / "weka", "-o", "w.jsonl", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tasks"] == 7


def test_lockstep_says_yes_and_no(tmp_path):
    recording = ROOT / "tests" / "data" / "sglang-schedules" / "Q"
    same = sqsim("lockstep", recording, "--json", cwd=tmp_path)
    assert same.returncode == 0
    assert json.loads(same.stdout)[0]["differences"] == []
    copy = tmp_path / "Q"
    copy.mkdir()
    for name in ("server.json", "workload.json", "responses.json", "steps.jsonl.gz"):
        (copy / name).write_bytes((recording / name).read_bytes())
    server = json.loads((copy / "server.json").read_text())
    server["pool_tokens"] += 1
    (copy / "server.json").write_text(json.dumps(server))
    assert sqsim("lockstep", copy, cwd=tmp_path).returncode == 1


def test_support_names_evidence(tmp_path):
    rows = json.loads(sqsim("support", "--json", cwd=tmp_path).stdout)
    mine = next(row for row in rows if (row["model"], row["gpu"]) == ("gpt-oss-20b", "h100-sxm"))
    assert mine["evidence"]["moe"] == "measured"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml"),
        (("run", "scenario.yaml", "--set", "engine.cahce=session"), "cache"),
        (("run", "scenario.yaml", "--set", "policy={name: sidequest}"), "engine.cache: session"),
        (("run", "scenario.yaml", "--set", "traces=missing.jsonl"), "missing.jsonl"),
        (
            ("run", "scenario.yaml", "--set", "engine.gpu=abacus"),
            "--set engine.gpu=abacus: engine.gpu: gpu 'abacus'",
        ),
        (("run", "scenario.yaml", "--set", "model=gpt-9"), "--set model=gpt-9: model: model 'gpt-9'"),
        (
            ("run", "scenario.yaml", "--set", "engine.profile=fast"),
            "--set engine.profile=fast: engine.profile: ",
        ),
        (
            ("run", "scenario.yaml", "--set", "engine.tensor_parallel=3"),
            "tensor_parallel=3: engine.tensor_parallel: ",
        ),
        (
            (
                "run",
                "scenario.yaml",
                "--set",
                "engine={gpu: h100-sxm, mem_fraction: 0.01}",
                "--set",
                "model=gpt-oss-20b",
            ),
            "does not fit",
        ),
        (
            ("run", "scenario.yaml", "--set", "tasks=99"),
            "--set tasks=99: tasks: 99 tasks are asked for, the traces hold 3",
        ),
        (
            ("run", "scenario.yaml", "--set", "load={as_recorded: true}"),
            "load.as_recorded: task 't0' has no arrival_s",
        ),
        (
            ("run", "scenario.yaml", "--set", "policy.name=pin_ttl", "--set", "policy.ttl_s=1e9"),
            "policy.ttl_s",  # fault 29.2: the end of the simulated clock is never the first that is said
        ),
        (("trace", "validate", "scenario.yaml"), "scenario.yaml"),
        (("report", "nowhere", "-o", "x.html"), "nowhere"),
        (("compare", "nowhere", "nowhere"), "nowhere"),
        (("lockstep", "nowhere"), "nowhere"),
        (("run",), "'scenario'"),
        (("run", "scenario.yaml", "--nope"), "--nope"),
        (("runn", "scenario.yaml"), "runn"),
        (("study", "scenario.yaml", "--output-dir", "o", "--jobs", "0"), "--jobs"),
        (("run", "scenario.yaml", "--output-dir", "x" * 300), "xxx"),
        (("trace", "synth", "-o", "x" * 300), "xxx"),
        (("trace", "synth", "-o", "/dev/null", "--overwrite"), "/dev/null"),
        (("trace", "synth", "-o", "t.jsonl", "--scale", "1e30"), "scale 1e+30"),
        (("trace", "synth", "-o", "t.jsonl", "--scale", "1e308"), "scale 1e+308"),
    ],
)
def test_wrong_input_is_one_error_that_names_it(scenario, arguments, names):
    done = sqsim(*arguments, cwd=scenario.parent)
    assert done.returncode == 2, done.stderr
    assert names in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert done.stdout == ""


def test_version_is_said_before_any_verb(tmp_path):
    done = sqsim("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("verb", [("support",), ("support", "--json"), ("run", "scenario.yaml")])
@pytest.mark.parametrize("full", [True, False])
def test_a_result_that_cannot_be_delivered_is_a_failed_run(scenario, verb, full):
    close = "" if full else "import os; os.close(1); sys.stdout = None; "
    command = [sys.executable, "-c", f"import sys; {close}from sqsim.cli.main import main; main()", *verb]
    with Path("/dev/full").open("w") as target:
        done = subprocess.run(
            command,
            cwd=scenario.parent,
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: output: No space left" if full else "error: stdout is closed")
    assert len(done.stderr.splitlines()) == 1


def test_what_a_terminal_cannot_show_is_escaped(scenario):
    trace = scenario.parent / "trace.jsonl"
    trace.rename(trace.with_name("tracé.jsonl"))
    done = subprocess.run(
        [sys.executable, "-c", "from sqsim.cli.main import main; main()", "trace", "stats", "tracé.jsonl"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=scenario.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert r"trac\xe9.jsonl" in done.stdout


def test_an_interrupt_says_so_and_leaves_nothing(scenario):
    script = (
        "from sqsim.cli.main import main\n"
        "from sqsim.simulation.simulate import Simulation\n"
        "def stop(*_, **__): raise KeyboardInterrupt\n"
        "Simulation.run = stop\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "run", "scenario.yaml", "--output-dir", "out"],
        cwd=scenario.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "error: interrupted; nothing was written\n")
    assert not (scenario.parent / "out").exists()


@pytest.mark.parametrize("package", ["sqsim", "sqreal"])
def test_an_interrupt_during_the_imports_says_so_too(package, tmp_path):
    """The interrupt arrives inside an import that swallows every exception, as some libraries do."""
    script = (
        "import os, signal, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        "            except BaseException: pass\n"
        "sys.meta_path.insert(0, Stop())\n"
        f"from {package}.cli.main import main\n"
        "assert 'typer' not in sys.modules\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted; nothing was written\n")


@pytest.mark.parametrize("package", ["sqsim", "sqreal"])
def test_the_entry_module_imports_no_library(package):
    """What takes long to import is imported once an interrupt is answered."""
    script = f"import sys, {package}.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"typer", "pydantic", "numpy", "pyarrow", "simpy", "httpx"} & set(done.stdout.split())


def test_a_run_in_which_no_task_completes_has_failed(scenario):
    done = sqsim("run", scenario, "--set", "engine.context_length=100", "--json", cwd=scenario.parent)
    assert done.returncode == 1
    assert json.loads(done.stdout)["tasks_completed"] == 0  # what happened is still told
    assert "3 x context_limit" in done.stderr
    assert "100 tokens" in done.stderr
    stopped = sqsim("run", scenario, "--set", "max_turns=1", "--json", cwd=scenario.parent)
    assert stopped.returncode == 0  # the scenario's own wish


def test_a_request_beyond_the_pool_names_both_pools_and_their_keys(tmp_path):
    """A session keeps whole contexts in the sliding-window part too, which is the smaller one (fault 29.4)."""
    write_tasks(tmp_path / "trace.jsonl", [chain(8, response=300, name=f"t{n}") for n in range(3)])
    (tmp_path / "s.yaml").write_text("traces: trace.jsonl\nengine: {cache: session, kv_capacity: 2600}\n")
    done = sqsim("run", "s.yaml", "--quiet", "--set", "load.concurrency=3", cwd=tmp_path)
    assert "holds 2600 tokens, its part for sliding-window layers 2080" in done.stdout + done.stderr
    assert "engine.swa_full_tokens_ratio" in done.stdout + done.stderr


def test_a_load_that_was_never_reached_is_said(scenario):
    done = sqsim("run", scenario, "--set", "load.concurrency=24", cwd=scenario.parent)
    assert "3 tasks never make 24 at a time" in done.stdout


def test_names_that_are_no_utf8_are_names(scenario):
    """In a directory of traces, and of the scenario itself, to the end: the page."""
    here, odd = scenario.parent, os.fsdecode(b"odd\xff")
    (here / "traces").mkdir()
    (here / "trace.jsonl").rename(here / "traces" / "trace.jsonl")
    (here / "traces" / f"{odd}.txt").write_text("no trace")
    (here / f"{odd}.yaml").write_text(scenario.read_text().replace("trace.jsonl", "traces"))
    done = sqsim(
        "sweep", f"{odd}.yaml", "--grid", "load.concurrency=1", "--output-dir", "out", "--jobs", "1", cwd=here
    )
    assert done.returncode == 0, done.stderr
    done = sqsim("report", "out", "-o", "page.html", cwd=here)
    assert (done.returncode, done.stdout) == (0, "report: page.html\n"), done.stderr
    assert "odd" in (here / "page.html").read_text()


def test_replicas_are_named_beside_the_numbers(scenario):
    words = ["run", scenario, "--set", "replicas=2", "--set", "router=round_robin"]
    done = sqsim(*words, cwd=scenario.parent)
    assert "- 2 replicas behind a router, round_robin: rates are of all of them together" in done.stdout
    assert "KV capacity 4000 tokens on each replica" in done.stdout
    assert "replica" not in sqsim("run", scenario, cwd=scenario.parent).stdout


STUDY = """
title: t
asked: a
variants: {a: {policy: {name: none}}}
panels: [{id: p, kind: single, title: t, scenario: scenario.yaml, variants: [a], keep: {}, set: {resample: true, tasks: 100000}}]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_study_that_is_ended_tidies_up(scenario, number):
    (scenario.parent / "study.yaml").write_text(STUDY)
    study = subprocess.Popen(
        [sys.executable, "-c", "from sqsim.cli.main import main; main()", "study", "study.yaml", "--output-dir", "out"],
        cwd=scenario.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for _ in range(600):
        if list(scenario.parent.glob(".out.*.partial")):
            break
        time.sleep(0.1)
    study.send_signal(number)
    _, said = study.communicate(timeout=60)
    assert (study.returncode, said) == (130, "error: interrupted; nothing was written\n")
    assert not [*scenario.parent.glob("out"), *scenario.parent.glob(".out*")]
