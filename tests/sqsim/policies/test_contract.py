# SPDX-License-Identifier: Apache-2.0
"""What a policy may see, what its class must declare, and what happens where it does what no policy may do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import pytest
from pydantic import PrivateAttr

import sqsim.experiments.points as points_module
from sqsim.base.workers import Workers
from sqsim.errors import PolicyError, RunError, ScenarioError
from sqsim.experiments.plan.settings import settings
from sqsim.experiments.points import Points, content_key
from sqsim.policies import BUILT_IN, AfterEviction, AuxOptions, Decision, Policy, Script, View
from sqsim.policies.keep_last import KeepLast
from sqsim.policies.pin_ttl import PinTtl
from sqsim.policies.sidequest import SideQuest
from sqsim.record.schema import RunRecord
from sqsim.scenario.agents import Agents
from sqsim.scenario.labels import labels
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.models.serving.test_macro_steps import dyadic_profile
from tests.sqsim.tasks import call, chain, task, turn

SEEN: list[tuple[View, float]] = []


class Watch(Policy):
    """Evicts nothing and remembers every view, with its KV usage."""

    name: Literal["watch"] = "watch"
    after_eviction: AfterEviction = "reprefill"

    def evict(self, view: View) -> Sequence[int]:
        SEEN.append((view, view.kv_usage))
        return ()


class Full(Policy):
    """Evicts all that was read once the server is filled beyond `above`."""

    name: Literal["full"] = "full"
    above: float = 0.1
    after_eviction: AfterEviction = "reprefill"

    def evict(self, view: View) -> Sequence[int]:
        return [c.cursor for c in view.cursors if c.read] if view.kv_usage > self.above else []


class Does(Policy):
    """Answers what a test says."""

    name: Literal["does"] = "does"
    after_eviction: AfterEviction = "reprefill"
    acts: ClassVar[dict[str, Callable[[View], object]]] = {}

    def evict(self, view: View):
        return self.acts["evict"](view) if "evict" in self.acts else ()

    def spawn_aux(self, view: View):
        return self.acts["spawn_aux"](view) if "spawn_aux" in self.acts else False

    def summarise(self, view: View):
        return self.acts["summarise"](view) if "summarise" in self.acts else 0

    def scripted(self, task, name, seed):
        return self

    def decide(self, index, turn, open_cursors):
        return self.acts["decide"](None) if "decide" in self.acts else Script(1, Decision())

    @property
    def aux(self) -> AuxOptions:
        return AuxOptions(max_new_tokens=64)


def scenario(directory, made, **changes):
    path = directory / "trace.jsonl"
    write_tasks(path, made)
    engine = {"gpu": "cpu", "kv_capacity": 20_000, "max_new_tokens": 128, **changes.pop("engine", {})}
    return make_scenario({"traces": str(path), "model": "tiny-llama", "engine": engine, **changes})


def same(one: RunRecord, other: RunRecord) -> bool:
    tables = ("tasks", "turns", "aux", "evictions", "engine")
    return one.run == other.run and all(getattr(one, name) == getattr(other, name) for name in tables)


def views(directory, made, **changes) -> list[tuple[View, float]]:
    SEEN.clear()
    simulate(scenario(directory, made, **changes), policy=Watch())
    return [(view._replace(measure=float), usage) for view, usage in SEEN]


# What it sees.


@pytest.mark.parametrize("change", ["longer", "other uses", "other calls"])
def test_what_a_policy_sees_does_not_depend_on_the_future(tmp_path, change):
    """Law 4, known answer: two tasks that are one up to turn 3 show the same views up to boundary 3."""
    one = chain(6)
    other = {
        "longer": task(*one.turns[:3], *chain(9, 500).turns[3:]),
        "other uses": chain(6, uses={6: (0, 1, 2)}),
        "other calls": task(*one.turns[:3], turn(call(3, 7), call(4, 9)), answer=None),
    }[change]
    first, second = (views(tmp_path, [made]) for made in (one, other))
    assert first[:4] == second[:4]
    assert len(first) == 7
    assert {field for view, _ in first for field in view._fields} == {
        "turn",
        "context_tokens",
        "cursors",
        "measure",
    }


def test_a_view_shows_tool_call_text_and_when_each_response_was_read(tmp_path):
    text = call(1).model_copy(update={"tool": "read", "call_text": '{"path": "a"}'})
    (*_, (view, usage)) = views(tmp_path, [task(turn(call(0)), turn(text))])
    assert [(c.cursor, c.opened, c.tokens, c.read_turn, c.read, c.tool, c.arguments) for c in view.cursors] == [
        (0, 0, 110, 1, True, "open", None),
        (1, 1, 110, None, False, "read", '{"path": "a"}'),
    ]
    assert view.context_tokens == 70 + 2 * 135
    assert 0 <= usage <= 1


@pytest.mark.parametrize("cache", ["radix", "session"])
def test_kv_usage_is_that_of_the_boundary(tmp_path, cache):
    """Known answer: alone between its turns a radix cache pins nothing; a session holds the context it has computed."""
    after = "reprefill" if cache == "radix" else "in_place"
    SEEN.clear()
    simulate(scenario(tmp_path, [chain(3)], engine={"cache": cache}), policy=Watch(after_eviction=after))
    # A turn's slots are those of its prompt and of its 35 output tokens.
    held = [0, 70 + 35, 205 + 35, 340 + 35] if cache == "session" else [0] * 4
    assert [usage * 20_000 for _, usage in SEEN] == pytest.approx(held)


@pytest.mark.parametrize("more", [{}, {"replicas": 2}, {"replicas": 2, "router": "round_robin"},
                                  {"replicas": 3, "router": "least_loaded"}])  # fmt: skip
def test_a_policy_that_reads_kv_usage_runs_alike_step_by_step(tmp_path, more):
    """Law 7: the usage at a boundary is that of this instant, whether steps were taken one by one or in one move.

    Step times are dyadic, so that sums are exact and no tie breaks otherwise.
    """
    profile = tmp_path / "profile.yaml"
    profile.write_text(dyadic_profile("tiny-llama", (3, 5, 7, 1, 2, 9)))
    made = [chain(8, 150, name=f"t{n}") for n in range(9)]
    engine = {"kv_capacity": 4000, "profile": str(profile)}
    asked = scenario(tmp_path, made, load={"concurrency": 6}, engine=engine, **more)
    whole, steps = (simulate(asked, policy=Full(), step_by_step=each) for each in (False, True))
    assert whole.evictions == steps.evictions
    assert whole.turns == steps.turns
    assert 0 < whole.evictions.num_rows < 9 * 8, "it evicts at some boundaries and not at others"


class Counts(Policy):
    """Evicts nothing; counts its boundaries."""

    name: Literal["counts"] = "counts"
    after_eviction: AfterEviction = "reprefill"
    _asked: list[int] = PrivateAttr(default_factory=list)

    def evict(self, view: View) -> Sequence[int]:
        self._asked.append(view.turn)
        assert self._asked == list(range(view.turn + 1)), "another task's boundaries"
        return ()


def test_what_a_policy_remembers_is_of_one_task(tmp_path):
    made = [chain(3, name=f"t{n}") for n in range(3)]
    simulate(scenario(tmp_path, made, load={"concurrency": 3}), policy=Counts())


# What its class declares.


def define(kind: str, *bases: type[Policy], **content) -> type[Policy]:
    notes = {"name": Literal["x"], **content.pop("notes", {})}
    body = {"__annotations__": notes, "__module__": __name__, "__qualname__": kind, "name": "x", **content}
    return type(Policy)(kind, bases or (Policy,), body)


def evict(self, view):
    return ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"evict": evict}, "it evicts, but does not declare after_eviction; add the key `after_eviction"),
        ({"spawn_aux": evict}, "it evicts, but does not declare after_eviction"),
        ({"notes": {"after_eviction": str}, "after_eviction": "reprefill"}, "after_eviction allows"),
        ({"notes": {"after_eviction": Literal["vanish"]}, "after_eviction": "vanish"}, r"after_eviction allows \('vanish',\)"),
        ({"notes": {"after_eviction": AfterEviction}, "after_eviction": "reprefill", "spawn_aux": evict},
         "it starts aux threads, but nothing decides what they name; override scripted"),
        ({"summarise": evict}, "it sends requests of its own, but does not declare their options; override aux"),
        ({"hold_s": property(lambda _: 3.0)}, "it overrides hold_s, .* override needs_sessions"),
        ({"notes": {"n": int}}, "key 'n' has no default"),
        ({"notes": {"name": str}}, "its name is not one word; declare `name"),
    ],
)  # fmt: skip
def test_a_class_that_leaves_something_open_is_refused(content, message):
    with pytest.raises(PolicyError, match=rf"policy class {__name__}\.Odd: .*{message}"):
        define("Odd", **content)


def test_a_policy_that_takes_anothers_eviction_is_checked_as_that():
    with pytest.raises(PolicyError, match="does not declare after_eviction"):
        define("Heir", type("Base", (Policy,), {"__module__": __name__, "evict": evict}))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_policy_is_named_as_its_class(name):
    assert BUILT_IN[name]().name == name


# As an object.


def test_an_object_is_checked_against_its_scenario(tmp_path):
    asked = scenario(tmp_path, [chain(3)])
    with pytest.raises(
        ScenarioError, match=r"policy\.after_eviction: 'in_place' does not exist with engine\.cache 'radix'"
    ):
        simulate(asked, policy=Full(after_eviction="in_place"))
    with pytest.raises(ScenarioError, match=r"pin_ttl pins sessions, and engine\.cache 'radix' has none"):
        simulate(asked, policy=PinTtl())
    taken = define("Mine", notes={"name": Literal["keep_last"]}, name="keep_last")
    with pytest.raises(
        ScenarioError, match=r"policy 'keep_last' is .*KeepLast, and this one is .*Mine; give it another name"
    ):
        simulate(asked, policy=taken())


def test_an_object_of_a_built_in_policy_gives_the_record_of_its_name(tmp_path):
    asked = scenario(tmp_path, [chain(6)], policy={"name": "keep_last", "n": 1})
    assert same(simulate(asked), simulate(scenario(tmp_path, [chain(6)]), policy=KeepLast(n=1)))


def test_a_record_names_the_source_of_a_policy_that_is_none_of_ours(tmp_path):
    found = Agents(scenario(tmp_path, [chain(3)]).with_(policy=Full())).describe()
    assert found["policy_source"]["class"] == f"{__name__}:Full"
    assert re.fullmatch("[0-9a-f]{64}", found["policy_source"]["sha256"])
    assert found["scenario"]["policy"] == {"name": "full", "above": 0.1, "after_eviction": "reprefill"}
    assert "policy_source" not in Agents(scenario(tmp_path, [chain(3)])).describe()


def test_the_source_of_a_policy_is_part_of_a_points_key(tmp_path, monkeypatch):
    asked = scenario(tmp_path, [chain(3)]).with_(policy=Full())
    before = content_key(asked)
    assert content_key(asked) == before
    monkeypatch.setattr(points_module, "source_digest", lambda _: "edited")
    assert content_key(asked) != before


def test_points_of_a_policy_object_run_in_other_processes(tmp_path):
    asked = scenario(tmp_path, [chain(3, name=f"t{n}") for n in range(2)])
    store = Points(tmp_path / "points")
    store.make_room(overwrite=False)
    items = [asked.with_(policy=Full(above=above)) for above in (0.0, 0.5)]
    first, second = store.run(items, Workers(2))
    assert first["scenario"]["policy"]["above"] == 0.0
    assert second["metrics"]["evictions"] == 0


def test_what_cannot_be_handed_to_another_process_is_named():
    with pytest.raises(RunError, match=r"cannot be handed to another process.*--jobs 1"):
        list(Workers(2).each(print, [threading.Lock(), threading.Lock()]))


# What it answers.


@pytest.mark.parametrize(
    ("acts", "message"),
    [
        ({"evict": lambda view: [99] if view.turn == 2 else []}, "evict at turn 2 of task 't' names cursor 99, which is not open; open are: 0, 1"),
        ({"evict": lambda view: [c.cursor for c in view.cursors]}, "evict at turn 1 of task 't' names cursor 0, which was not read yet"),
        ({"evict": lambda _: ["0"]}, "evict at turn 0 of task 't' names '0', which is no cursor"),
        ({"evict": lambda view: [True] if view.turn == 2 else []}, "names True, which is no cursor"),
        ({"evict": lambda _: 5}, "evict at turn 0 of task 't' raised TypeError"),
        ({"evict": lambda _: {}["x"]}, "evict at turn 0 of task 't' raised KeyError: 'x'; repair the policy"),
        ({"spawn_aux": lambda _: 1}, "spawn_aux at turn 0 of task 't' returns 1; return True or False"),
        ({"summarise": lambda _: -1}, r"summarise at turn 0 of task 't' returns -1; return tokens, 0 to 64"),
        ({"summarise": lambda _: 65}, "returns 65"),
        ({"summarise": lambda _: 1.5}, "returns 1.5"),
        ({"spawn_aux": lambda _: True, "decide": lambda _: None}, "decide at turn 0 of task 't' returns None"),
        ({"spawn_aux": lambda _: True, "decide": lambda _: Script(65, Decision())}, "decide at turn 0 of task 't' writes 65 tokens"),
        ({"spawn_aux": lambda _: True, "decide": lambda _: Script(5, Decision(("a",)))}, "names"),
    ],
)  # fmt: skip
def test_what_no_policy_may_do_is_named(tmp_path, monkeypatch, acts, message):
    monkeypatch.setattr(Does, "acts", acts)
    with pytest.raises(PolicyError, match=f"policy does: .*{message}"):
        simulate(scenario(tmp_path, [chain(4)]), policy=Does())


@pytest.mark.parametrize("value", [-1.0, float("nan"), "long"])
def test_a_policy_that_cannot_state_its_needs_is_named(tmp_path, value):
    odd = define("Holds", hold_s=property(lambda _: value), needs_sessions=property(lambda _: False))
    with pytest.raises(ScenarioError, match=r"policy x: hold_s is "):
        simulate(scenario(tmp_path, [chain(3)]), policy=odd())


def test_labels_are_what_a_policy_says_of_itself(tmp_path):
    asked = scenario(tmp_path, [chain(3)])
    assert labels(asked.with_(policy=SideQuest(k=3, after_eviction="reprefill")))["k"] == 3
    assert labels(asked.with_(policy=Full()))["k"] is None


def test_a_bound_is_labelled_as_one_and_plans_never_choose_it():
    assert {name for name, kind in BUILT_IN.items() if kind.hindsight} == {"oracle"}
    tried = {each.name: each for each in settings((2,), hybrid=False, sized=False)}
    assert [name for name, each in tried.items() if not each.deployable] == ["oracle / in_place"]
    assert [name for name, each in tried.items() if each.is_sidequest] == ["sidequest K=2 / reprefill", "sidequest K=2 / in_place"]  # fmt: skip


def test_a_policy_that_needs_more_than_is_free_is_tried_as_that():
    """By default a plan tries a policy's defaults, on the cache that they fit; an eviction in place needs the plugin."""
    notes = {"after_eviction": AfterEviction}
    there, again = (
        define("Other", notes=notes, after_eviction=after, evict=evict).choices((1,))
        for after in ("in_place", "reprefill")
    )
    assert [(each.name, each.cache, each.free) for each in (*there, *again)] == [
        ("x / in_place", "session", False),
        ("x / reprefill", "radix", True),
    ]


def test_kv_usage_is_refused_where_nobody_measures_it():
    with pytest.raises(
        PolicyError, match=r"view\.kv_usage is not known: .*pass View\(\.\.\., measure=\.\.\.\)"
    ):
        _ = View(0, 0, ()).kv_usage
