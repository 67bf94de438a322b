# SPDX-License-Identifier: Apache-2.0
"""A setting that cannot be run is named with its reason, on the terminal and on the page; names of settings differ."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from sqsim.errors import InputError, PolicyError, RunError
from sqsim.experiments.plan.not_run import of_plan, of_region
from sqsim.experiments.plan.search import Load, Search, find_edges
from sqsim.experiments.plan.settings import Setting
from sqsim.experiments.plan.slo import Slo
from sqsim.trace.store import write_tasks
from tests.sqsim.packages import POLICY, install, run_with
from tests.sqsim.tasks import chain

MAIN = "from sqsim.cli.main import main; main()"
FAILS = POLICY.format(name="fails") + "    def evict(self, view): raise ValueError('one\\ntwo')\n"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    write_tasks(tmp_path / "trace.jsonl", [chain(6, 200, name=f"t{n}") for n in range(4)])
    engine = {"gpu": "cpu", "kv_capacity": 20_000, "max_new_tokens": 64}
    content = {"traces": "trace.jsonl", "model": "tiny-llama", "engine": engine}
    (tmp_path / "scenario.yaml").write_text(json.dumps(content))
    return tmp_path / "scenario.yaml"


def words(verb: str, scenario: Path) -> list[str]:
    asked = ["--slo", "ttft_s_p99<20", "--agents", "2", "--seeds", "2"]
    own = asked if verb == "plan" else ["--concurrency", "1,2"]
    return [verb, str(scenario), *own, "--k", "2", "--jobs", "1", "--quiet", "--output-dir", str(scenario.parent / "out")]  # fmt: skip


@pytest.mark.parametrize("verb", ["plan", "region"])
def test_a_policy_that_fails_is_named_with_its_reason(scenario, verb):
    site = install(scenario.parent / "site", "fails", FAILS)
    done = run_with(site, MAIN, *words(verb, scenario))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "could not be run" in line]
    assert line.startswith("- fails / reprefill")
    assert "ValueError" in line
    page = scenario.parent / "page.html"
    assert run_with(site, MAIN, "report", scenario.parent / "out", "-o", page).returncode == 0
    said = re.findall(r'<ul class="refused">(.*?)</ul>', page.read_text(), re.DOTALL)
    plain = [html.unescape(re.sub("<.*?>", "", each)) for each in said]
    assert [" ".join(each.split()) for each in plain] == [line.removeprefix("- ")]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ("[Choice('none', 'radix', {})]", "policy 'twice': choices() names a setting 'none', as policy 'none' does"),
        ("[Choice('x', 'radix', {}), Choice('x', 'radix', {})]", "choices() names a setting 'x', as policy 'twice'"),
        ("5", "policy twice: choices gives 5; return a list of Choice"),
        ("[3]", "policy twice: choices gives [3]; return a list of Choice"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["plan", "region"])
def test_choices_that_cannot_be_told_apart_are_refused(scenario, verb, choices, message):
    code = POLICY.format(name="twice") + f"    @classmethod\n    def choices(cls, ks): return {choices}\n"
    done = run_with(install(scenario.parent / "site", "twice", code), MAIN, *words(verb, scenario))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def searches(*names: str) -> list[Search]:
    return [Search(Setting(name), "cpu", Load(agents=2), (Slo("ttft_s_p99", "<", 1.0),)) for name in names]


def test_where_nothing_could_be_run_every_reason_is_said():
    def run(asked):
        return iter([PolicyError(f"no {search.setting.name}\nat all") for search, _ in asked])

    with pytest.raises(RunError) as caught:
        find_edges(searches("a", "b"), run)
    assert caught.value.exit_code == 1
    assert str(caught.value).splitlines()[1:] == ["a on cpu: no a; at all", "b on cpu: no b; at all"]


def test_a_fault_that_all_settings_share_is_said_once():
    with pytest.raises(InputError, match=r"^no such GPU$"):
        find_edges(searches("a", "b"), lambda asked: iter([InputError("no such GPU") for _ in asked]))


def test_reasons_take_one_line_each():
    plan = [
        {"setting": "a", "gpu": "cpu", "error": None, "runs": []},
        {"setting": "b", "gpu": "cpu", "error": "x\ny", "runs": [{}]},
    ]
    assert of_plan(plan) == ["b on cpu: could not be run to the end: x; y"]
    region = [{"errors": {"a": "x\ny"}}, {"errors": {"a": "x\ny", "b": "z"}}]
    assert of_region(region) == [
        "a: could not be run at 2 of 2 places: x; y",
        "b: could not be run at 1 of 2 places: z",
    ]
