# SPDX-License-Identifier: Apache-2.0
"""Scenarios: SPEC.md's defaults, the combinations that exist, and errors that name place, value and fix."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sqsim.errors import InputError, ScenarioError, TraceError
from sqsim.scenario.scenario import Scenario, load_scenario, make_scenario

# SPEC.md, "Scenario (YAML; strict) with defaults", key by key; `traces` is the only one that must be given.
DEFAULTS = {
    "traces": ["tasks.jsonl"],
    "tasks": "all",
    "resample": False,
    "model": "gpt-oss-20b",
    "engine": {
        "gpu": "h100-sxm",
        "profile": "auto",
        "kernel_costs": "auto",
        "tensor_parallel": 1,
        "kv_dtype": "bfloat16",
        "mem_fraction": 0.88,
        "kv_capacity": "auto",
        "swa_full_tokens_ratio": 0.8,
        "swa_pool": True,
        "page_size": 1,
        "max_running": 256,
        "max_new_tokens": 4096,
        "chunked_prefill": 8192,
        "schedule_conservativeness": 1.0,
        "cache": "radix",
        "context_length": "auto",
    },
    "load": {"concurrency": 24},
    "policy": {"name": "none"},
    "apply": "boundary",
    "max_turns": "none",
    "tool_wait_cap_s": "none",
    "seed": 0,
}
POLICY_DEFAULTS = [
    {"name": "none"},
    {
        "name": "sidequest",
        "k": 4,
        "decisions": "scripted",
        "recall": 0.85,
        "false_rate": 0.02,
        "aux_tokens": 125,
        "aux_max_new_tokens": 256,
        "aux_start": "after_main_prefill",
        "after_eviction": "in_place",
        "spawn_without_cursors": False,
    },
    {"name": "keep_last", "n": 3, "trigger_tokens": 0, "after_eviction": "reprefill"},
    {"name": "oracle", "after_eviction": "in_place"},
    {"name": "compaction", "trigger_tokens": 32768, "summary_tokens": 1000},
    {"name": "pin_ttl", "ttl_s": 10.0},
    {"name": "pause", "above": 0.9, "below": 0.8},
]
MINIMAL = {"traces": "tasks.jsonl"}


@pytest.fixture
def scenario_file(tmp_path):
    def write(text="traces: tasks.jsonl\n"):
        file = tmp_path / "scenario.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def refusal(content, *overrides):
    with pytest.raises(ScenarioError) as caught:
        make_scenario(content, overrides)
    return str(caught.value)


def test_defaults_are_the_specs(scenario_file):
    assert load_scenario(scenario_file()).resolved() == DEFAULTS


@pytest.mark.parametrize("policy", POLICY_DEFAULTS, ids=lambda policy: policy["name"])
def test_policy_defaults_are_the_specs(policy):
    cache = "session" if policy.get("after_eviction") == "in_place" or policy["name"] == "pin_ttl" else "radix"
    scenario = make_scenario({**MINIMAL, "engine": {"cache": cache}, "policy": {"name": policy["name"]}})
    assert scenario.resolved()["policy"] == policy
    assert scenario.after_eviction == policy.get("after_eviction")


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        ({"rate_per_s": 1}, {"rate_per_s": 1.0, "arrivals": "poisson"}),
        ({"rate_per_s": 0.2, "arrivals": "uniform"}, {"rate_per_s": 0.2, "arrivals": "uniform"}),
        ({"as_recorded": True}, {"as_recorded": True, "speedup": 1.0}),
        ({"concurrency": 8}, {"concurrency": 8}),
    ],
)
def test_loads(given, resolved):
    assert make_scenario({**MINIMAL, "load": given}).resolved()["load"] == resolved


@pytest.mark.parametrize("cache", ["radix", "session"])
@pytest.mark.parametrize("after", ["in_place", "reprefill"])
@pytest.mark.parametrize("policy", ["sidequest", "keep_last", "oracle"])
def test_only_the_specs_combinations_exist(cache, after, policy):
    """SPEC.md, "Which combinations exist": radix with reprefill, session with in_place; else both fixes are named."""
    content = {**MINIMAL, "engine": {"cache": cache}, "policy": {"name": policy, "after_eviction": after}}
    if (cache, after) in {("radix", "reprefill"), ("session", "in_place")}:
        assert make_scenario(content).after_eviction == after
        return
    message = refusal(content)
    other = {"radix": "session", "session": "radix"}[cache]
    fit = {"radix": "reprefill", "session": "in_place"}[cache]
    assert f"policy.after_eviction: {after!r} does not exist with engine.cache {cache!r}" in message
    assert f"set engine.cache: {other}, or policy.after_eviction: {fit}" in message


@pytest.mark.parametrize("policy", ["sidequest", "oracle"])
def test_a_default_that_does_not_fit_the_default_cache_is_refused_too(policy):
    assert "set engine.cache: session, or policy.after_eviction: reprefill" in refusal(
        {**MINIMAL, "policy": {"name": policy}}
    )


@pytest.mark.parametrize("cache", ["radix", "session"])
def test_none_exists_with_both_caches(cache):
    assert make_scenario({**MINIMAL, "engine": {"cache": cache}}).after_eviction is None


def test_resolved_is_json_and_reads_back_as_itself():
    content = {
        **MINIMAL,
        "engine": {"cache": "session", "kv_capacity": 5000},
        "policy": {"name": "sidequest"},
        "max_turns": 3,
    }
    scenario = make_scenario(content)
    again = make_scenario(json.loads(json.dumps(scenario.resolved(), allow_nan=False)))
    assert again == scenario
    assert again.resolved() == scenario.resolved()


def test_one_pool_for_all_layers_has_ratio_one():
    """SPEC.md: `1.0 with swa_pool: off = every token in every layer`."""
    assert make_scenario(MINIMAL, ["engine.swa_pool=off"]).engine.swa_full_tokens_ratio == 1.0
    assert "engine.swa_pool: on" in refusal(
        {**MINIMAL, "engine": {"swa_pool": False, "swa_full_tokens_ratio": 0.5}}
    )


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("load.concurrency=0", "load.concurrency"),
        ("load.concurrency=1.5", "load.concurrency"),
        ("load.rate_per_s=0", "load.rate_per_s"),
        ("load.rate_per_s=-1", "load.rate_per_s"),
        ("load.rate_per_s=.inf", "load.rate_per_s"),
        ("load={rate_per_s: .nan}", "load.rate_per_s"),
        ("load={rate_per_s: 1, arrivals: waves}", "load.arrivals"),
        ("load={as_recorded: false}", "load.as_recorded"),
        ("load={as_recorded: true, speedup: 0}", "load.speedup"),
        ("engine.mem_fraction=2", "engine.mem_fraction"),
        ("engine.mem_fraction=0", "engine.mem_fraction"),
        ("engine.page_size=3.5", "engine.page_size"),
        ("engine.page_size=0", "engine.page_size"),
        ("engine.page_size=true", "engine.page_size"),
        ("engine.page_size=3", "engine.chunked_prefill"),
        ("engine.chunked_prefill=-1", "engine.chunked_prefill"),
        ("engine={kv_capacity: 8, page_size: 16}", "engine.kv_capacity"),
        ("engine.kv_capacity=", "engine.kv_capacity"),
        ("engine.kv_capacity=0", "engine.kv_capacity"),
        ("engine.swa_full_tokens_ratio=0", "engine.swa_full_tokens_ratio"),
        ("engine.swa_full_tokens_ratio=1.1", "engine.swa_full_tokens_ratio"),
        ("engine.swa_pool=1", "engine.swa_pool"),
        ("engine.max_running=0", "engine.max_running"),
        ("engine.max_new_tokens=0", "engine.max_new_tokens"),
        ("engine.schedule_conservativeness=0", "engine.schedule_conservativeness"),
        ("engine.tensor_parallel=0", "engine.tensor_parallel"),
        ("engine.kv_dtype=int3", "engine.kv_dtype"),
        ("engine.cache=lru", "engine.cache"),
        ("engine.context_length=0", "engine.context_length"),
        ("policy={name: sidequest, k: 0}", "policy.k"),
        ("policy={name: sidequest, recall: 1.5}", "policy.recall"),
        ("policy={name: sidequest, recall: .nan}", "policy.recall"),
        ("policy={name: sidequest, false_rate: -0.1}", "policy.false_rate"),
        ("policy={name: sidequest, aux_tokens: 0}", "policy.aux_tokens"),
        ("policy={name: sidequest, aux_tokens: 300}", "policy.aux_tokens"),
        ("policy={name: sidequest, decisions: alive}", "policy.decisions"),
        ("policy={name: sidequest, aux_start: later}", "policy.aux_start"),
        ("policy={name: sidequest, after_eviction: rotate}", "policy.after_eviction"),
        ("policy={name: keep_last, n: -1}", "policy.n"),
        ("policy={name: keep_last, trigger_tokens: -1}", "policy.trigger_tokens"),
        ("policy={name: h2o}", "policy.name"),
        ("policy={k: 4}", "policy.name"),
        ("policy=none", "policy"),
        ("apply=never", "apply"),
        ("max_turns=0", "max_turns"),
        ("tool_wait_cap_s=-1", "tool_wait_cap_s"),
        ("tool_wait_cap_s=.inf", "tool_wait_cap_s"),
        ("seed=-1", "seed"),
        ("seed=1.0", "seed"),
        ("tasks=0", "tasks"),
        ("tasks=some", "tasks"),
        ("resample=true", "resample"),
        ("traces=[]", "traces"),
        ("traces=5", "traces"),
        ("traces=[a.jsonl, 5]", "traces[1]"),
        ('traces="a\\0b"', "traces[0]"),
        ("model=", "model"),
    ],
)
def test_a_meaningless_value_is_refused_by_place_path_and_what_is_allowed(override, path):
    message = refusal(MINIMAL, override)
    assert f"--set {override}: {path}: " in message
    assert "allowed: " in message or " set " in message or "raise " in message
    assert "pydantic" not in message


@pytest.mark.parametrize(
    ("override", "path", "meant"),
    [
        ("engin.cache=session", "engin", "engine"),
        ("cache=session", "cache", "engine.cache"),
        ("concurrency=3", "concurrency", "concurrency"),
        ("engine.page_sise=1", "engine.page_sise", "page_size"),
        ("load={concurrency: 1, speedup: 2}", "load.speedup", "load.as_recorded with speedup"),
        ("load={rate_per_s: 1, arival: poisson}", "load.arival", "arrivals"),
        ("load={concurency: 1}", "load", "concurrency"),
        ("policy={name: keep_last, k: 3}", "policy.k", "policy sidequest: policy.k"),
        ("policy={name: oracle, after_evict: in_place}", "policy.after_evict", "after_eviction"),
        ("policy={name: side_quest}", "policy.name", "sidequest"),
        ("apply=boundry", "apply", "boundary"),
    ],
)
def test_an_unknown_key_or_word_gets_a_suggestion_at_every_level(override, path, meant):
    message = refusal(MINIMAL, override)
    assert f": {path}: " in message
    assert f"did you mean {meant}" in message.replace("load.concurrency with concurrency", "concurrency")


@pytest.mark.parametrize(
    "keys", [{"concurrency": 1, "rate_per_s": 1}, {"rate_per_s": 1, "as_recorded": True}, {}]
)
def test_exactly_one_load(keys):
    assert "exactly one of {concurrency: 24}" in refusal({**MINIMAL, "load": keys})


def test_every_fault_is_told_at_once_with_its_line(scenario_file):
    text = "traces: t.jsonl\nseed: -1\nengine:\n  page_size: 0\n  # why not\n  cahe: session\n"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file := scenario_file(text))
    assert sorted(line.split(": ")[:2] for line in str(caught.value).splitlines()) == [
        [f"{file}:2", "seed"],
        [f"{file}:4", "engine.page_size"],
        [f"{file}:6", "engine.cahe"],
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("traces: a\nseed: 1\nseed: 2\n", ":3: seed: set twice, first at "),
        ("traces: a\nengine: {cache: radix, cache: session}\n", ":2: engine.cache: set twice"),
        ("traces: a\nengine: &e {cache: radix}\n", ":2: cannot be read as YAML: anchors and aliases"),
        ("traces: a\n[1]: 2\n", ":2: "),
        ("traces: a\n? [1]\n: 2\n", ":2: a key must be a plain word"),
        ("traces: [a\n", "cannot be read as YAML"),
        ("traces: a\nseed: !!python/name:os.system\n", ":2: seed: "),
        ("traces: a\nseed: !!int x\n", ":2: seed: "),
        ("traces: a\nseed: 0x" + "f" * 6000 + "\n", ":2: seed: "),
        (b"traces: \xff\n", "cannot be read as YAML"),
        ("", "a scenario is a mapping"),
        ("- traces\n", "a scenario is a mapping"),
        ("seed: 1\n", ": traces: missing; add it"),
        ("a: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_a_text_that_is_no_scenario(scenario_file, text, told):
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file := scenario_file(text))
    assert str(caught.value).startswith(str(file))
    assert told in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_scenario(tmp_path / "nowhere.yaml")


def test_overrides_apply_in_order_as_yaml_on_top_of_the_file(scenario_file):
    file = scenario_file("traces: t.jsonl\nengine: {cache: session}\nseed: 7\n")
    scenario = load_scenario(
        file, ["seed=8", "seed=9", "load.rate_per_s=1e-1", "traces=[a.jsonl, b.jsonl]", "engine.swa_pool=off"]
    )
    assert (scenario.seed, scenario.engine.cache, scenario.engine.swa_pool) == (9, "session", False)
    assert scenario.load.rate_per_s == 0.1
    assert scenario.traces == ("a.jsonl", "b.jsonl")


@pytest.mark.parametrize(
    "override", ["seed", "=1", "a..b=1", "traces.x=1", "seed={a: 1, a: 2}", "seed=[1", "seed=*x"]
)
def test_a_bad_override_is_named(override):
    assert refusal(MINIMAL, override).startswith(f"--set {override}: ")


def test_relative_paths_are_relative_to_the_file(scenario_file, tmp_path):
    scenario = load_scenario(scenario_file("traces: [sub/t.jsonl, /data/t.jsonl]\nmodel: config.json\n"))
    assert [str(path) for path in scenario.trace_paths] == [str(tmp_path / "sub/t.jsonl"), "/data/t.jsonl"]
    assert scenario.model_path == tmp_path / "config.json"
    assert scenario.resolved()["traces"] == ["sub/t.jsonl", "/data/t.jsonl"]  # no trace of where the file lies
    assert load_scenario(scenario_file()).model_path is None
    mine = load_scenario(scenario_file(), ["engine.profile=mine.yaml"])
    assert mine.profile == str(tmp_path / "mine.yaml")
    assert load_scenario(scenario_file(), ["engine.profile=roofline"]).profile == "roofline"
    assert load_scenario(scenario_file()).profile == "auto"
    costs = load_scenario(scenario_file(), ["engine.kernel_costs=kernels.jsonl"]).kernel_costs
    assert costs == str(tmp_path / "kernels.jsonl")


def test_what_no_record_has_calibrated_is_assumed():
    content = {**MINIMAL, "engine": {"cache": "session"}}
    assert make_scenario({**content, "policy": {"name": "sidequest", "recall": 1.0}}).assumed() == [
        "policy.recall",
        "policy.false_rate",
        "policy.aux_tokens",
    ]
    assert make_scenario({**content, "policy": {"name": "oracle"}}).assumed() == []
    assert make_scenario({**content, "policy": {"name": "sidequest", "decisions": "live"}}).assumed() == []


def test_what_scripts_a_decision_bounds_no_live_one():
    """`aux_tokens` is the length of a scripted output; a live one may be short."""
    content = {**MINIMAL, "engine": {"cache": "session"}}
    short = {"name": "sidequest", "decisions": "live", "aux_max_new_tokens": 60}
    assert make_scenario({**content, "policy": short}).policy.aux_max_new_tokens == 60


def test_a_scenario_never_changes(scenario_file):
    scenario = load_scenario(scenario_file())
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 1


KEYS = st.sampled_from(
    [*DEFAULTS, *DEFAULTS["engine"], *POLICY_DEFAULTS[1], "concurrency", "rate_per_s", "as_recorded", "x", ""]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["none", "auto", "all", "sidequest"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.lists(KEYS, min_size=1, max_size=3), VALUES)
def test_no_values_raise_anything_but_a_scenario_error(content, path, value):
    override = f"{'.'.join(path)}={yaml.safe_dump(value, default_flow_style=True)}"
    for overrides in ([], [override]):
        try:
            scenario = make_scenario({**MINIMAL, **content}, overrides)
        except ScenarioError as error:
            assert str(error)  # noqa: PT017
        else:
            assert isinstance(scenario, Scenario)
            assert make_scenario(scenario.resolved()) == scenario


@given(
    st.binary(max_size=60)
    | st.text(max_size=60)
    | st.text("abtrces:{}[],-!&*#|>%@`'\"\\?<~=. \n\t0123456789_exn", max_size=60)
    | st.tuples(st.sampled_from(["seed: ", "traces: ", "policy: {name: ", "!!"]), st.text(max_size=20)).map(
        "".join
    )
)
def test_no_text_raises_anything_but_a_scenario_error(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        load_scenario(file)
    except ScenarioError as error:
        assert str(error).startswith(str(file))  # noqa: PT017


def test_a_wrong_item_is_one_fault_and_suggests_nothing_empty():
    with pytest.raises(ScenarioError) as caught:
        make_scenario({"traces": [""]})
    assert str(caught.value).startswith(
        "scenario: traces[0]: '' String should have at least 1 character; allowed: "
    )
    assert len(str(caught.value).splitlines()) == 1


def test_an_override_over_several_lines_is_named_in_one():
    with pytest.raises(ScenarioError) as caught:
        make_scenario({"traces": "t.jsonl"}, ["seed=1\nmodel: x"])
    assert str(caught.value).startswith("--set seed=1 model: x: cannot be read as YAML")
    assert len(str(caught.value).splitlines()) == 1


def test_what_proves_wrong_later_is_named_with_its_place(tmp_path):
    """A GPU that nobody knows is found out when it is looked up; the error still says which line named it."""
    path = tmp_path / "s.yaml"
    path.write_text("traces: t.jsonl\nengine:\n  gpu: abacus\n")
    with (
        pytest.raises(ScenarioError, match=r"s\.yaml:3: engine\.gpu: not known"),
        load_scenario(path).blamed("engine.gpu"),
    ):
        raise InputError("not known")
    overridden = load_scenario(path, ["engine.gpu=abaci"])
    with (
        pytest.raises(ScenarioError, match=r"--set engine\.gpu=abaci: engine\.gpu: no"),
        overridden.blamed("engine.gpu"),
    ):
        raise InputError("no")
    named = load_scenario(path, ["engine.gpu=abaci"], ["study.yaml:7"])
    with pytest.raises(ScenarioError, match=r"study\.yaml:7: engine\.gpu: no"), named.blamed("engine.gpu"):
        raise InputError("no")
    with pytest.raises(ScenarioError, match=r"s\.yaml: model: no"), named.blamed("model"):
        raise InputError("no")  # a default stands nowhere
    with pytest.raises(TraceError, match=r"^t\.jsonl:5: bad$"), named.blamed("traces"):
        raise TraceError("bad", file="t.jsonl", line=5)
