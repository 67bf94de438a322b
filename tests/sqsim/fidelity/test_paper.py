# SPDX-License-Identifier: Apache-2.0
"""The study of the published serving run: its readings, its priors, its worlds, and that its pages are what its data say."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

PAPER = Path(__file__).parents[3] / "reports" / "paper"


@pytest.fixture(scope="module")
def paper():
    """Imports a module of the study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PAPER))
        yield importlib.import_module


def published(world, rate="main_tok_s", usage="kv_usage_peak"):
    """Runs that show exactly what the paper prints, under one reading."""
    keys = {"tok_s": rate, "run_s": "run_s", "usage": usage}
    others = dict.fromkeys(
        ("main_tok_s", "all_tok_s", "output_tok_s_peak", "kv_usage_peak", "kv_held_peak"), 1.0
    )
    shown = {policy: dict(others) for policy in world.AT}
    for (policy, name), value in world.PUBLISHED.items():
        shown[policy][keys[name]] = value
    return shown


def test_a_reading_says_which_number_is_meant(paper):
    world = paper("world")
    for rate, key in (("main", "main_tok_s"), ("all", "all_tok_s"), ("peak", "output_tok_s_peak")):
        shown = published(world, rate=key)
        for reading in world.READINGS:
            exact = reading.rate == rate and reading.usage == "used"
            assert (world.distance(shown, reading) == 0) == exact
    shown = published(world)
    shown["sidequest"]["run_s"] = 1489 * 1.1
    errors = world.errors(shown, world.Reading("main", "used"))
    assert errors[("sidequest", "run_s")] == pytest.approx(0.1)
    assert world.distance(shown, world.Reading("main", "used")) == pytest.approx(0.1)


def test_priors_span_what_they_say(paper):
    world = paper("world")
    low, high = (
        world.world(np.zeros(len(world.UNKNOWNS))),
        world.world(np.full(len(world.UNKNOWNS), 1 - 1e-12)),
    )
    for name, unknown in world.UNKNOWNS.items():
        ends = (unknown.choices[0], unknown.choices[-1]) if unknown.choices else (unknown.low, unknown.high)
        assert (low[name], high[name]) == (ends if unknown.choices else pytest.approx(ends)), name


def test_tasks_are_longer_or_shorter_and_otherwise_the_same(paper):
    world = paper("world")
    middle = {"turns": 1.0, "output": 1.0, "response": 1.0, "wait": 1.0}
    base, slow = world.tasks(middle, 5), world.tasks({**middle, "wait": 2.0}, 5)
    for one, other in zip(base, slow, strict=True):
        for before, after in zip(one.turns, other.turns, strict=True):
            for call, twice in zip(before.calls, after.calls, strict=True):
                assert twice.latency_s == pytest.approx(2 * call.latency_s, abs=1e-3)
                assert twice.response_tokens == call.response_tokens
    longer = world.tasks({**middle, "turns": 1.3}, 40)
    ratio = sum(len(task.turns) for task in longer) / sum(len(task.turns) for task in world.tasks(middle, 40))
    assert ratio == pytest.approx(1.3, abs=0.05)


def test_a_part_of_the_tasks_stands_for_all(paper):
    """Run time and rates are of 424 tasks, whatever number is run: closed loops have a rate."""
    world = paper("world")
    one = world.world(np.full(len(world.UNKNOWNS), 0.5))
    few, more = (world.run(one, "none", 4, number) for number in (24, 48))
    for key in ("run_s", "main_tok_s", "task_s_mean"):
        assert few[key] == pytest.approx(more[key], rel=0.12), key
    assert few["main_tok_s"] * few["run_s"] == pytest.approx(few["output_tokens_a_task"] * world.TASKS)


def test_a_surrogate_proposes_worlds_near_the_best_and_apart(paper):
    """Where the numbers depend on one unknown alone, it finds the value that gives them."""
    explain, world = paper("explain"), paper("world")
    draw = np.random.default_rng(0)
    at = list(world.UNKNOWNS).index("kv_capacity")
    rows = []
    for _ in range(60):
        shares = draw.random(len(world.UNKNOWNS))
        factor = float(np.exp(shares[at] - 0.3))
        shown = {
            policy: {key: value * factor for key, value in run.items()}
            for policy, run in published(world).items()
        }
        rows.append({"shares": list(shares), "tasks": 1, "shown": shown})
    chosen = explain.propose(rows, 8, 0)
    assert len(chosen) == 8
    assert np.mean([abs(point[at] - 0.3) for point in chosen]) < 0.05
    for place, point in enumerate(chosen):
        for other in chosen[:place]:
            assert np.abs(point - other).max() > 0.02


@pytest.mark.parametrize(("module", "file"), [("page", "README"), ("evictions", "EVICTIONS")])
def test_pages_are_what_their_data_say(paper, module, file):
    found = paper(module)
    text = found.page() if module == "page" else found.page(json.loads(found.FILE.read_text()))
    assert text == (PAPER / f"{file}.md").read_text()
