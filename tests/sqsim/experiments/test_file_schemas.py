# SPDX-License-Identifier: Apache-2.0
"""`sqsim schema`: editors accept what sqsim accepts, and refuse what form alone can show to be wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sqsim.base.strict_yaml import parse
from sqsim.cli.app import app
from sqsim.errors import ScenarioError
from sqsim.experiments.file_schemas import scenario_schema, study_schema
from sqsim.policies.registry import POLICIES
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import LOADS
from sqsim.scenario.scenario import Scenario, make_scenario

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[3]
FILES = [path for top in ("reports", "examples", "benchmarks") for path in (ROOT / top).rglob("*.yaml")]
STUDIES = [path for path in FILES if "panels:" in path.read_text(encoding="utf-8")]
SCENARIOS = [path for path in FILES if re.search(r"^traces:", path.read_text(encoding="utf-8"), re.MULTILINE)]
DEFAULTS = make_scenario({"traces": ["tasks.jsonl"]}).resolved()
CHECK = jsonschema.Draft202012Validator(scenario_schema())
CHECK_STUDY = jsonschema.Draft202012Validator(study_schema())


def named(path):
    return str(path.relative_to(ROOT))


def content(path):
    return parse(path.read_bytes(), str(path)).value


def accepted(keys):
    return CHECK.is_valid({"traces": "t.jsonl", **keys})


def mappings(schema):
    """Every mapping of a file that a schema describes."""
    if isinstance(schema, dict):
        found = [schema] if "properties" in schema else []
        return found + [each for inner in schema.values() for each in mappings(inner)]
    return [each for inner in schema for each in mappings(inner)] if isinstance(schema, list) else []


def test_they_are_schemas_of_their_dialect():
    for schema in (scenario_schema(), study_schema()):
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", SCENARIOS, ids=named)
def test_the_repositorys_scenarios_fit(path):
    CHECK.validate(content(path))


@pytest.mark.parametrize("path", STUDIES, ids=named)
def test_the_repositorys_studies_fit(path):
    CHECK_STUDY.validate(content(path))
    assert not CHECK_STUDY.is_valid({**content(path), "pannels": []})
    assert not CHECK_STUDY.is_valid({**content(path), "panels": []})


def test_there_were_files_to_check():
    assert len(SCENARIOS) >= 2
    assert STUDIES


def test_every_mapping_refuses_unknown_keys_and_describes_each_of_its_own():
    for schema in (scenario_schema(), study_schema()):
        found = mappings(schema)
        assert len(found) >= 3
        for each in found:
            assert each["additionalProperties"] is False
            for name, key in each["properties"].items():
                assert key["description"], name
                assert "default" in key or name in each["required"], name


def test_its_defaults_are_the_scenarios():
    keys = scenario_schema()["properties"]
    said = {name: key["default"] for name, key in keys.items() if "default" in key}
    assert {**said, "traces": DEFAULTS["traces"]} == {**DEFAULTS, "replicas": 1, "router": "session_affinity"}
    assert {name: key["default"] for name, key in keys["engine"]["properties"].items()} == DEFAULTS["engine"]


def test_everything_with_its_defaults_fits():
    assert CHECK.is_valid(DEFAULTS)
    assert CHECK.is_valid(make_scenario({"traces": "t.jsonl", "replicas": 2}).resolved())
    for name in POLICIES:
        for engine in ({"cache": "radix"}, {"cache": "session"}):
            try:
                whole = make_scenario(
                    {"traces": "t.jsonl", "policy": {"name": name}, "engine": engine}
                ).resolved()
            except ScenarioError:  # this policy's default goes with the other cache
                continue
            assert CHECK.is_valid(whole)


def test_each_load_and_each_policy_is_a_choice():
    keys = scenario_schema()["properties"]
    assert [choice["properties"]["name"]["const"] for choice in keys["policy"]["oneOf"]] == list(POLICIES)
    assert [set(choice["required"]) & set(LOADS) for choice in keys["load"]["oneOf"]] == [
        {key} for key in LOADS
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {"engine": {"kv_capacity": "auto", "profile": "auto"}},
        {"tasks": "all", "max_turns": "none", "tool_wait_cap_s": None},
        {"tasks": 5, "max_turns": 5, "tool_wait_cap_s": 0.5},
        {"traces": ["a", "b"]},
        {"load": {"rate_per_s": 1}},
        {"load": {"as_recorded": True}},
    ],
    ids=str,
)
def test_what_sqsim_accepts_fits(keys):
    make_scenario({"traces": "t.jsonl", **keys})
    assert accepted(keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"engin": {}},
        {"engine": {"cahce": "radix"}},
        {"engine": {"cache": "tree"}},
        {"engine": {"kv_capacity": None}},
        {"engine": {"kv_capacity": "all"}},
        {"engine": {"mem_fraction": 1.5}},
        {"traces": []},
        {"traces": ""},
        {"tasks": 0},
        {"tasks": "none"},
        {"resample": "yes"},
        {"load": {}},
        {"load": {"concurrency": 1, "rate_per_s": 1}},
        {"load": {"as_recorded": False}},
        {"load": {"concurrency": 0}},
        {"policy": {}},
        {"policy": {"name": "keep"}},
        {"policy": {"name": "keep_last", "k": 4}},
        {"policy": {"n": 3}},
        {"seed": -1},
        {"seed": "7"},
    ],
    ids=str,
)
def test_what_is_wrong_in_form_is_refused_by_both(keys):
    with pytest.raises(ScenarioError):
        make_scenario({"traces": "t.jsonl", **keys})
    assert not accepted(keys)


def test_without_traces_it_is_no_scenario():
    assert not CHECK.is_valid({})


@given(
    st.sampled_from([*Scenario.model_fields, *(f"engine.{key}" for key in Engine.model_fields), "traces.x"]),
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from(["auto", "all", "none", "radix", "x"])
    ),
)
def test_whatever_a_schema_refuses_sqsim_refuses(key, value):
    """One way only: what goes with what is beyond a schema."""
    top, _, inner = key.partition(".")
    keys = {top: {inner: value} if inner else value}
    if not accepted(keys):
        with pytest.raises(ScenarioError):
            make_scenario({"traces": "t.jsonl", **keys})


def test_the_command_prints_it():
    for words, schema in ((["schema"], scenario_schema()), (["schema", "--study"], study_schema())):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0
        assert json.loads(result.stdout) == schema
