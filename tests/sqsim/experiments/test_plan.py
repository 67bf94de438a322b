# SPDX-License-Identifier: Apache-2.0
"""A plan finds the edge that its runs have, names what runs out, says how sure it is, and resumes to the same bytes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sqsim.experiments.points as points_module
from sqsim.cli.app import app
from sqsim.cli.plan import read_prices
from sqsim.errors import InputError
from sqsim.experiments.plan.bottleneck import bottleneck
from sqsim.experiments.plan.confidence import confidence
from sqsim.experiments.plan.plan import Ask, run_plan
from sqsim.experiments.plan.search import Load, Search, find_edges
from sqsim.experiments.plan.settings import Setting, settings
from sqsim.experiments.plan.slo import Slo, broken, parse_slo
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain, task


def folder(directory: Path, tasks, **engine) -> Path:
    write_tasks(directory / "trace.jsonl", tasks)
    keys = {"gpu": "cpu", "max_new_tokens": 64, **engine}
    scenario = {"traces": "trace.jsonl", "model": "tiny-llama", "engine": keys}
    (directory / "scenario.yaml").write_text(json.dumps(scenario))
    return directory / "scenario.yaml"


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [("ttft_s_p99<2", 1.9, True), ("ttft_s_p99<2", 2.0, False), ("ttft_s_p99<=2", 2.0, True),
     ("output_tok_s >= 10", 9.0, False), ("task_s_p90<=1e2", None, False)],
)  # fmt: skip
def test_a_bound_is_kept_or_broken(text, value, holds):
    assert parse_slo(text).holds(value) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [("fast", "is no bound on a metric"), ("ttft<2", "there is no metric 'ttft'"),
     ("ttft_s_p99<0", "ttft_s_p99 is never below 0"), ("ttft_s_p99<=-1", "raise the bound"),
     ("ttft_s_p99<soon", "'soon' is no number"), ("ttft_s_p99<nan", "is no number")],
)  # fmt: skip
def test_a_wrong_bound_is_named(text, message):
    with pytest.raises(InputError, match=message):
        parse_slo(text)


def test_failures_for_want_of_memory_break_any_slo():
    slo = parse_slo("ttft_s_p99<2")
    assert broken((slo,), {"ttft_s_p99": 1.0}) == []
    assert broken((slo,), {"ttft_s_p99": 1.0, "failed_kv_capacity": 3}) == ["failed_kv_capacity"]


def made_up(load: Load, value) -> Search:
    """A search whose runs are a function of the share of one replica."""
    search = Search(Setting("none"), "cpu", load, (Slo("ttft_s_p99", "<", 1.0),))

    def run(asked):
        for each, replicas in asked:
            yield {"metrics": {"ttft_s_p99": value(each.load.on(replicas))}, "key": str(replicas)}

    find_edges([search], run)
    return search


@pytest.mark.parametrize("edge", [1, 3, 7, 8, 9, 20, 63, 64, 100])
def test_the_fewest_replicas_are_found_wherever_the_edge_is(edge):
    """A replica carries `edge` agents: 64 agents need 64 / edge of them, rounded up."""
    search = made_up(Load(agents=64), lambda agents: 0.5 if agents <= edge else 2.0)
    assert search.fewest == -(-64 // edge)
    assert len(search.runs) <= 10


def test_a_rate_that_one_replica_carries_decides():
    """A replica carries 90 tasks an hour: 1,000 need 12."""
    search = made_up(Load(tasks_per_h=1000.0), lambda rate: 0.5 if rate <= 90 else 2.0)
    assert search.fewest == 12


def test_no_number_serves_and_one_serves_all():
    assert made_up(Load(agents=64), lambda _: 2.0).fewest is None
    assert made_up(Load(agents=64), lambda _: 0.5).fewest == 1


def test_how_sure_is_a_prediction_limit_by_hand():
    """Values 1, 2, 3: mean 2, sd 1; Student's 95 % point at 2 degrees of freedom is 2.920; times sqrt(4 / 3)."""
    found = [{"metrics": {"ttft_s_p99": value}} for value in (1.0, 2.0, 3.0)]
    tight, wide = Slo("ttft_s_p99", "<", 5.0), Slo("ttft_s_p99", "<", 6.0)
    assert confidence(found, [tight]).limits["ttft_s_p99<5"] == pytest.approx(
        2 + 2.920 * (4 / 3) ** 0.5, abs=1e-3
    )
    assert (confidence(found, [tight]).kept, confidence(found, [tight]).sure) == (3, False)
    assert confidence(found, [wide]).sure
    floor = Slo("ttft_s_p99", ">", 0.5)
    assert confidence(found, [floor]).limits["ttft_s_p99>0.5"] == pytest.approx(
        2 - 2.920 * (4 / 3) ** 0.5, abs=1e-3
    )
    assert not confidence(found[:1], [wide]).sure


def point(spent: dict[str, float], **metrics) -> dict:
    whole = {"queue_s": 0.0, "prefill_s": 1.0, "decode_s": 10.0, "tools_s": 20.0, "rest_s": 0.0, **spent}
    base = {"prefill_tokens": 1000, "tasks_completed": 1, "output_tokens": 100, "kv_usage_peak": 0.5}
    return {"metrics": {**base, **metrics}, "time_spent": whole}


@pytest.mark.parametrize(
    ("spent", "metrics", "name"),
    [
        ({"decode_s": 60.0}, {}, "compute"),
        ({"queue_s": 30.0}, {"kv_usage_peak": 0.99}, "kv"),
        ({"decode_s": 60.0}, {"prefill_tokens": 3000}, "kv"),
        ({"decode_s": 60.0}, {"aux_output_tokens": 50}, "aux"),
        ({}, {}, "tools"),
        ({"rest_s": 50.0}, {"pauses": 3}, "kv"),
    ],
)  # fmt: skip
def test_what_grew_names_the_bottleneck(spent, metrics, name):
    assert bottleneck(point({}), point(spent, **metrics)).name == name


def test_settings_have_the_free_rivals_and_every_k():
    names = [each.name for each in settings((1, 4), hybrid=True, sized=True)]
    assert names[:4] == ["none", "none, swa ratio 0.1", "none, mem 0.93", "none, fp8 KV"]
    assert sum("K=" in name for name in names) == 4
    assert [each.name for each in settings((1,), hybrid=True, sized=True) if not each.deployable] == [
        "oracle / in_place"
    ]
    assert "none, fp8 KV" not in [each.name for each in settings((1,), hybrid=True, sized=False)]


def countable(directory: Path) -> Path:
    """Tasks of one step, of 40 + 30 prompt tokens, 50 of output and 64 declared. A pool of 600 holds 4 at once.

    RULES.md, rule 11: one is admitted while its extend and what it declares (and one token) fit what is left. So with
    at most 4 at a time nobody waits for memory, and with 5 somebody does.
    """
    return folder(directory, [task(answer=50, name=f"t{n}") for n in range(8)], kv_capacity=600)


def waits(directory: Path, concurrency: int) -> float:
    from sqsim.base.workers import Workers
    from sqsim.experiments.points import Points
    from sqsim.scenario.scenario import load_scenario

    store = Points(directory / "alone")
    store.make_room(overwrite=False)
    changes = [f"load.concurrency={concurrency}", "tasks=24", "resample=true"]
    (found,) = store.run([load_scenario(directory / "scenario.yaml", changes)], Workers())
    return found["metrics"]["ttft_s_p99"]


def test_a_count_that_can_be_made_by_hand_is_found(tmp_path):
    """12 agents whose SLO only holds while nobody waits: the plan finds 12 over what a replica holds at once."""
    file = countable(tmp_path)
    by_hand = {agents: waits(tmp_path, agents) for agents in range(1, 9)}
    holds = max(agents for agents in by_hand if by_hand[agents] < 2 * by_hand[1])
    assert 2 <= holds < 8, by_hand
    bound = 2 * by_hand[1]
    ask = Ask(file, (Slo("ttft_s_p99", "<", bound),), Load(agents=12), ks=(4,), seeds=2)
    found = run_plan(ask, tmp_path / "out")
    none = found["settings"][0]
    assert none["setting"] == "none"
    assert none["gpus"] == -(-12 // holds)
    assert none["share"] <= holds < none["breaks_at"]
    assert "Is SideQuest needed at all? No" in found["sentences"][0]
    assert found["answer"] == found["best_free"]


def ask_for(directory: Path, **more) -> Ask:
    file = folder(directory, [chain(6, 200, name=f"t{n}", uses={5: (0,)}) for n in range(6)], kv_capacity=3500)
    return Ask(file, (Slo("ttft_s_p99", "<", 0.08),), Load(agents=12), ks=(2,), seeds=2, **more)


def test_a_plan_is_resumed_to_the_same_bytes_and_runs_nothing_twice(tmp_path, monkeypatch):
    ask = ask_for(tmp_path, prices={"cpu": 2.0})
    first = run_plan(ask, tmp_path / "whole")
    ran = []

    def counted(scenario, **more):
        ran.append(scenario)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return simulate(scenario, **more)

    monkeypatch.setattr(points_module, "simulate", counted)
    with pytest.raises(points_module.Interrupted, match="3 points were finished"):
        run_plan(ask, tmp_path / "halted")
    run_plan(ask, tmp_path / "halted")
    names = [path.name for path in (tmp_path / "whole" / "points").iterdir()]
    assert len(ran) == len(names) + 1
    for name in ("plan.json", *(f"points/{each}" for each in names)):
        assert (tmp_path / "halted" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    best = next(each for each in first["settings"] if f"{each['setting']} on {each['gpu']}" == first["answer"])
    assert best["cost_per_h"] == 2.0 * best["gpus"]
    assert all(each["cost_per_h"] is None or each["gpus"] for each in first["settings"])


def test_what_is_not_deployable_is_never_the_answer(tmp_path):
    found = run_plan(ask_for(tmp_path), tmp_path / "out")
    oracle = next(each for each in found["settings"] if not each["deployable"])
    assert oracle["setting"] == "oracle / in_place"
    assert not (found["answer"] or "").startswith("oracle")


def test_an_slo_that_nothing_keeps_names_what_binds_and_fails(tmp_path):
    file = folder(tmp_path, [chain(3)], kv_capacity=3500)
    done = CliRunner().invoke(
        app,
        ["plan", str(file), "--slo", "task_s_p90<0.001", "--agents", "2", "--k", "4", "--seeds", "2",
         "--output-dir", str(tmp_path / "out"), "--jobs", "1", "--quiet"],
    )  # fmt: skip
    assert done.exit_code == 1
    assert "No number of GPUs keeps this SLO for 2 agents" in done.stdout
    assert re.search(
        r"With 1 agent on a replica, under none on cpu, task_s_p90 is [0-9.]+\. What binds is tools",
        done.stdout,
    )
    assert "- every number is simulated\n- profile tiny-llama-cpu-roofline: assumed: step" in done.stdout
    assert "What binds is tools" in (tmp_path / "out" / "plan.html").read_text()


def test_tools_never_bind_what_a_request_waits_for(tmp_path):
    """Tasks are almost all tools here, and yet a TTFT below the floor is the server's."""
    file = folder(tmp_path, [chain(3)], kv_capacity=3500)
    ask = Ask(file, (Slo("ttft_s_p99", "<", 1e-9),), Load(agents=2), ks=(4,), seeds=2)
    found = run_plan(ask, tmp_path / "out")
    assert found["answer"] is None
    assert {each["bottleneck"]["name"] for each in found["settings"]} == {"compute"}
    assert "What binds is compute" in found["sentences"][0]


def test_the_replicas_of_the_scenario_change_no_answer(tmp_path):
    """One replica is run, whatever the scenario says of replicas: else a GPU of the answer would be several."""
    ask = ask_for(tmp_path)
    one = run_plan(ask, tmp_path / "one")
    three = run_plan(replace(ask, changes=("replicas=3",)), tmp_path / "three")
    assert {**one, "scenario": None} == {**three, "scenario": None}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "neither is given; say what is to be carried"),
        (["--agents", "2", "--load", "3"], "both are given; say what is to be carried"),
        (["--load", "1e9"], "below 1e9"),
        (["--agents", "2", "--tasks-per-agent", "inf"], "--tasks-per-agent inf makes runs of inf tasks"),
        (["--agents", "2", "--tasks-per-agent", "1e12"], "at most 1e"),
        (["--agents", "2", "--gpus", "h100"], "--gpus 'h100' is unknown; choose some of h100-sxm"),
        (
            ["--agents", "2", "--set", "replicas=2", "--set", "router=round_robin"],
            "set router: session_affinity",
        ),
        (["--load", "-3"], "must be above 0"),
        (["--agents", "2", "--k", "4,4"], "give turns of 1 or more, each once"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, more, message):
    file = folder(tmp_path, [chain(3)])
    words = ["plan", str(file), "--slo", "ttft_s_p99<1", "--output-dir", str(tmp_path / "out"), *more]
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [("engine.gpu=nosuch", "nosuch"), ("traces=nowhere.jsonl", "nowhere"), ("engine.page_size=0", "page_size")],
)
def test_what_no_setting_can_be_run_with_is_wrong_input(tmp_path, change, message):
    file = folder(tmp_path, [chain(3)])
    words = [
        "plan",
        str(file),
        "--slo",
        "ttft_s_p99<1",
        "--agents",
        "2",
        "--k",
        "4",
        "--set",
        change,
        "--quiet",
    ]
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(
            app, [*words, "--jobs", "1", "--output-dir", str(tmp_path / "out")], catch_exceptions=False
        )


def test_prices_are_a_table_of_numbers(tmp_path):
    file = tmp_path / "prices.yaml"
    file.write_text("h100-sxm: 2.5\nh200-sxm: 3\n")
    assert read_prices(file) == {"h100-sxm": 2.5, "h200-sxm": 3.0}
    file.write_text("h100-sxm: 2.5\nh200-sxm: cheap\n")
    with pytest.raises(InputError, match=r"prices\.yaml:2: h200-sxm: 'cheap' is no price"):
        read_prices(file)
    file.write_text("h100-sxm: 2.5\nh200: 3\n")
    with pytest.raises(
        InputError, match=r"prices\.yaml:2: 'h200': there is no such GPU; choose some of h100-sxm"
    ):
        read_prices(file)


def test_the_fewest_lie_above_every_number_that_breaks_the_slo():
    """An SLO need not be monotone: 4 replicas keep it, 5 do not, so 6 are the fewest that can be promised."""
    search = Search(Setting("none", {}), "h100-sxm", Load(agents=60), (parse_slo("ttft_s_p99<2"),))
    for replicas, ttft in {3: 9.0, 4: 1.0, 5: 9.0, 6: 1.0, 7: 1.0}.items():
        search.runs[replicas] = {"metrics": {"ttft_s_p99": ttft}}
    assert (search.bad, search.good, search.fewest) == ([3, 5], [4, 6, 7], 6)


def test_a_plan_says_what_the_servers_kernel_decides(tmp_path):
    """Bfloat16 experts are slower than native MXFP4 ones, so they need more GPUs; the plan names the log line that tells."""
    path = folder(tmp_path, [chain(3, name=f"t{n}") for n in range(8)], gpu="h100-sxm")
    changes = ("model=gpt-oss-20b",)
    ask = Ask(path, (parse_slo("tpot_s_p90<0.006"),), Load(agents=24), changes=changes, ks=(4,), seeds=2)
    content = run_plan(ask, tmp_path / "plan")
    assert content["kernels"]
    for entry in content["kernels"]:
        assumed, other = entry["needs"]
        assert assumed["profile"].endswith("mxfp4moe-vllm")
        assert other["profile"].endswith("bf16moe-sglang")
        assert other["gpus"] is None or other["gpus"] > assumed["gpus"]
    said = [line for line in content["sentences"] if "if your server runs" in line]
    assert said
    assert all("look at its log" in line for line in said)
    named = Ask(path, ask.slos, ask.load, changes=(*changes, "engine.profile=roofline"), ks=(4,), seeds=2)
    assert run_plan(named, tmp_path / "named")["kernels"] == []
