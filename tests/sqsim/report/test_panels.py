# SPDX-License-Identifier: Apache-2.0
"""Which runs stand together: records by what they share, names by what differs, and nothing computed across panels."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import fixtures
import pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqsim.record.files import write_record
from sqsim.report.data.grouping import Named, conditions, names, titles
from sqsim.report.data.loading import load
from sqsim.report.pages.runs_page import build_page

OTHER_TRACE = [{"path": "frames.jsonl.zst", "sha256": "0" * 64}]


def shown(page: str) -> str:
    return re.sub(r"\s+", " ", pages.text(page))


def written(directory: Path, variant="none / radix", change=None, concurrency=6, **more) -> Path:
    """A record of a few tasks; `change` is applied to its run.json."""
    record = fixtures.make_record(variant, concurrency=concurrency, tasks=6, turns=4, **more)
    record.run = copy.deepcopy(record.run)
    if change is not None:
        change(record.run)
    write_record(record, directory)
    return directory


def setting(path: str, value):
    """A change of one scenario key."""

    def change(run):
        *parents, key = path.split(".")
        target = run["scenario"]
        for parent in parents:
            target = target[parent]
        target[key] = value

    return change


def rate_load(run):
    run["scenario"]["load"] = {"rate_per_s": 0.2, "arrivals": "poisson"}


UNRELATED = {
    "traces": lambda run: run.__setitem__("traces", OTHER_TRACE),
    "tasks": setting("tasks", 6),
    "resample": setting("resample", True),
    "model": setting("model", "qwen3-8b"),
    "gpu": setting("engine.gpu", "a100-sxm-80gb"),
    "load": rate_load,
}


@pytest.mark.parametrize("what", UNRELATED)
def test_records_that_share_no_conditions_stand_in_panels_of_their_own(tmp_path, what):
    paths = [
        written(tmp_path / "a"),
        written(tmp_path / "b", "sidequest / in_place", UNRELATED[what]),
    ]
    sources = load(paths, 50)
    assert [panel.variants for panel in sources.panels] == [["none / radix"], ["sidequest / in_place"]]
    assert len({panel.title for panel in sources.panels}) == 2, "each is named by what it is"
    text = shown(build_page(paths))
    assert "changes from" not in text
    assert "change against" not in text
    assert "runs of different panels cannot be compared" in text


def test_panels_are_named_by_their_conditions():
    run = fixtures.run_json()
    resampled = copy.deepcopy(run)
    resampled["scenario"] |= {"tasks": 48, "resample": True, "load": {"as_recorded": True, "speedup": 1.0}}
    one = copy.deepcopy(run)
    one["scenario"]["tasks"] = 1
    groups = [(conditions(each), each, loads) for each, loads in ((run, [8, 24]), (resampled, []), (one, [1]))]
    assert titles(groups) == [
        "24 tasks of frames.jsonl.zst · gpt-oss-20b on h100-sxm · 8 to 24 at a time",
        "48 tasks drawn from frames.jsonl.zst · gpt-oss-20b on h100-sxm · arrivals as recorded",
        "1 task of frames.jsonl.zst · gpt-oss-20b on h100-sxm · 1 at a time",
    ]


def test_traces_of_one_name_are_told_apart_by_their_content():
    run, other = fixtures.run_json(), fixtures.run_json(traces=OTHER_TRACE)
    first, second = titles([(conditions(each), each, [24]) for each in (run, other)])
    assert first.endswith("traces 5f70bf18a086")
    assert second.endswith("traces 000000000000")


SETTINGS = {
    "policy.k": 8, "policy.recall": 0.5, "policy.false_rate": 0.2, "policy.aux_tokens": 60, "engine.profile": "mine",
    "engine.kv_capacity": 50_000, "engine.mem_fraction": 0.7, "seed": 1, "apply": "turn_end", "max_turns": 9,
    "tool_wait_cap_s": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("key", SETTINGS)
def test_runs_that_differ_in_one_key_are_all_shown_and_named_by_it(tmp_path, key):
    paths = [
        written(tmp_path / "a", "sidequest / in_place"),
        written(tmp_path / "b", "sidequest / in_place", setting(key, SETTINGS[key])),
    ]
    (panel,) = load(paths, 50).panels
    short = key.split(".")[-1]
    assert len(panel.variants) == 2
    assert all(f"{short} = " in name for name in panel.variants)
    assert panel.variants[1].endswith(f"({short} = {SETTINGS[key]})")


def test_recorded_speedups_are_told_apart(tmp_path):
    def recorded(speedup):
        return lambda run: run["scenario"].__setitem__("load", {"as_recorded": True, "speedup": speedup})

    (panel,) = load([written(tmp_path / str(s), change=recorded(s)) for s in (1.0, 2.0)], 50).panels
    assert panel.variants == ["none / radix (speedup = 1.0)", "none / radix (speedup = 2.0)"]


def test_a_key_that_differs_between_variants_is_named_too(tmp_path):
    """Two variants of which one had more memory: the names say so, where a comparison would hide it."""
    paths = [
        written(tmp_path / "a", change=setting("engine.kv_capacity", 60_000)),
        written(tmp_path / "b", "sidequest / in_place", setting("engine.kv_capacity", 90_000)),
    ]
    (panel,) = load(paths, 50).panels
    assert panel.variants == [
        "none / radix (kv_capacity = 60000)",
        "sidequest / in_place (kv_capacity = 90000)",
    ]


def test_a_curve_never_mixes_two_settings(tmp_path):
    paths = [
        written(tmp_path / "a", "sidequest / in_place", concurrency=3),
        written(tmp_path / "b", "sidequest / in_place", setting("policy.k", 8), concurrency=6),
    ]
    (panel,) = load(paths, 50).panels
    assert len(panel.variants) == 2


def test_the_same_run_twice_is_shown_twice(tmp_path):
    paths = [written(tmp_path / name) for name in ("a", "b")]
    (panel,) = load(paths, 50).panels
    assert panel.variants == [f"none / radix ({path})" for path in paths]


@given(
    st.lists(
        st.tuples(st.sampled_from("xy"), st.integers(1, 2), st.dictionaries(st.sampled_from(["policy.k", "seed"]), st.integers(0, 2))),
        max_size=8,
    )
)  # fmt: skip
def test_no_two_runs_bear_one_name_at_one_place(runs):
    named = [Named(variant, place, facts, {}, f"run {n}") for n, (variant, place, facts) in enumerate(runs)]
    found = names(named)
    assert len({(name, run.place) for name, run in zip(found, named, strict=True)}) == len(runs)
    assert all(name.startswith(run.variant) for name, run in zip(found, named, strict=True))


def test_fewer_tasks_than_asked_for_at_a_time_is_said(tmp_path):
    record = fixtures.make_record(concurrency=1, tasks=1)
    record.run["scenario"]["load"] = {"concurrency": 24}
    write_record(record, tmp_path / "run")
    (panel,) = load([tmp_path / "run"], 50).panels
    assert panel.concurrencies == [1]
    text = shown(build_page([tmp_path / "run"]))
    assert "Only 1 task: 24 at a time was never reached" in text
    assert "use resample: true" in text
    assert "24 tasks at a time" not in text
    assert not re.search(r"(?<![\d,.])1 (tasks|runs|evictions|tokens|main steps|aux threads|rows)\b", text)


def test_sub_agents_take_no_place(tmp_path):
    """6 tasks of which 4 are sub-agents: 2 at a time at most."""
    record = fixtures.make_record(concurrency=6, tasks=6)
    place = record.tasks.schema.get_field_index("parent")
    parents = [None, None, *["frames-000"] * 4]
    field = record.tasks.schema.field(place)
    record.tasks = record.tasks.set_column(place, field, [parents])
    write_record(record, tmp_path / "run")
    (panel,) = load([tmp_path / "run"], 50).panels
    assert panel.concurrencies == [2]


def test_a_study_that_asks_for_more_than_its_tasks_shows_one_point_there(tmp_path):
    study = fixtures.study_json()
    study["panels"] = study["panels"][:1]
    panel = study["panels"][0]
    panel["points"] = [fixtures.point("none / radix", concurrency=c) for c in (24, 424, 512, 600)]
    for point in panel["points"][1:]:
        point["metrics"] = dict(panel["points"][1]["metrics"])
    (loaded,) = load([fixtures.write_study(tmp_path / "study", study)], 50).panels
    assert loaded.concurrencies == [24, 424]
    assert len(loaded.points) == 2
    assert "512 and 600 at a time were never reached" in loaded.warnings[0]


def test_study_points_that_differ_in_a_label_are_named_by_it(tmp_path):
    study = fixtures.study_json()
    study["panels"] = [
        fixtures.panel("x", "concurrency", "X", [fixtures.point("sidequest / in_place", k=k) for k in (2, 4)])
    ]
    (panel,) = load([fixtures.write_study(tmp_path / "study", study)], 50).panels
    assert panel.variants == ["sidequest / in_place (k = 2)", "sidequest / in_place (k = 4)"]


def with_published(tmp_path, **more) -> str:
    study = fixtures.study_json()
    study["panels"] = [
        fixtures.panel(
            "x", "single", "X", [fixtures.point("none / radix"), fixtures.point("sidequest / in_place")], **more
        )
    ]
    return shown(build_page([fixtures.write_study(tmp_path / "study", study)]))


@pytest.mark.parametrize(
    ("more", "there"),
    [
        (fixtures.PAPER, True),
        ({}, False),
        ({"published": "sidequest"}, False),
        (fixtures.PAPER | {"gpu": "a100-sxm-80gb"}, False),
        (fixtures.PAPER | {"model": "qwen3-8b"}, False),
        ({"note": "FRAMES, as in the paper"}, False),
    ],
)  # fmt: skip
def test_published_numbers_are_asked_for_and_of_the_papers_system(tmp_path, more, there):
    assert ("uncompressed → SideQuest" in with_published(tmp_path, **more)) is there


@pytest.mark.parametrize(
    ("source", "there"),
    [("sqsim synth frames --seed 0 --scale 1", True), ("sqsim synth coding", False), (None, False)],
)
def test_plain_records_show_published_numbers_only_on_the_generators_tasks(tmp_path, source, there):
    trace = {"path": "paper-frames.jsonl.zst", "sha256": "ab"} | ({} if source is None else {"source": source})
    paths = [written(tmp_path / v[:4], v, traces=[trace]) for v in ("none / radix", "sidequest / in_place")]
    assert ("uncompressed → SideQuest" in shown(build_page(paths))) is there


def test_level_lines_come_from_the_same_study_and_the_same_tasks_only(tmp_path):
    """The K sweep is held against a run of another panel, and never against one with other output."""
    study = fixtures.study_json()
    study["panels"] = [study["panels"][0], study["panels"][2]]
    assert "Level lines, which do not depend on K" in shown(
        build_page([fixtures.write_study(tmp_path / "a", study)])
    )
    other = json.loads(json.dumps(study))
    for point in other["panels"][0]["points"]:
        point["metrics"]["output_tokens"] += 1
    assert "There is no run without eviction" in shown(
        build_page([fixtures.write_study(tmp_path / "b", other)])
    )


def test_two_studies_that_ask_the_same_lose_no_record(tmp_path):
    paths = [fixtures.write_study(tmp_path / name) for name in ("one", "two")]
    sources = load(paths, 20)
    titles = [panel.title for panel in sources.panels]
    assert len(set(titles)) == len(titles)
    assert (
        len({sources.short(panel, point) for panel, point, _ in sources.records}) == len(sources.records) == 12
    )
