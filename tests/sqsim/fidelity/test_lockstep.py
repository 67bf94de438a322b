# SPDX-License-Identifier: Apache-2.0
"""Law 11: fed with a real server's arrivals, the scheduler takes every decision the server took."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sqsim.errors import InputError
from sqsim.fidelity.lockstep import replay

RECORDINGS = Path(__file__).parents[2] / "data" / "sglang-schedules"
FOLDERS = sorted(path.parent for path in RECORDINGS.rglob("steps.jsonl.gz"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RECORDINGS)))
def test_every_recording_is_replayed_without_a_difference(folder):
    report = replay(folder)
    assert [str(difference) for difference in report.differences] == []
    assert report.stopped_at is None
    assert report.same


@pytest.mark.parametrize(
    ("name", "batches", "evicted", "retracted"),
    [("D/rep1", 1237, 25, 2), ("J2", 141, 35, 0), ("K2", 436, 68, 0), ("S1", 1581, 151, 0)],
)
def test_counts_are_those_of_the_recordings_table(name, batches, evicted, retracted):
    """README.md of the recordings, table "Scenarios"."""
    report = replay(RECORDINGS / name)
    assert (report.batches, report.evicted_leaves, report.retractions) == (batches, evicted, retracted)


# A log that was tampered with: each kind of difference is reported, at its line.

Event = dict[str, Any]


def first(events: list[Event], holds: Callable[[Event], Any]) -> tuple[int, Event]:
    return next((line, event) for line, event in enumerate(events, 1) if holds(event))


def copy(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def write_log(folder: Path, events: list[Event]) -> None:
    with gzip.open(folder / "steps.jsonl.gz", "wt", encoding="utf-8") as log:
        log.writelines(json.dumps(event) + "\n" for event in events)


def read_log(folder: Path) -> list[Event]:
    with gzip.open(folder / "steps.jsonl.gz", "rt", encoding="utf-8") as log:
        return [json.loads(line) for line in log]


def bump(*path: Any, by: float = 1) -> Callable[[Event], None]:
    """Adds to the number at this path."""

    def change(event: Event) -> None:
        at: Any = event
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] += by

    return change


def put(value: Any, *path: Any) -> Callable[[Event], None]:
    def change(event: Event) -> None:
        at: Any = event
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def flip(*path: Any) -> Callable[[Event], None]:
    def change(event: Event) -> None:
        at: Any = event
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = not at[path[-1]]

    return change


def is_step(event: Event) -> bool:
    return event["ev"] == "step"


TAMPERINGS = {
    "cap": ("Q", lambda e: e["ev"] == "arrive", bump("max_new"), "max_new"),
    "mode": ("A", is_step, put("decode", "mode"), "mode"),
    "row extend": ("A", is_step, bump("reqs", 0, 1), "rows"),
    "row prefix": ("A", lambda e: is_step(e) and e["reqs"][0][2], bump("reqs", 0, 2), "rows"),
    "row outputs": ("A", is_step, bump("reqs", 0, 4), "row n_out"),
    "row kv": ("A", is_step, bump("reqs", 0, 6), "row kv"),
    "row tree": ("A", is_step, bump("reqs", 0, 8), "row tree"),
    "no batch": ("A", lambda e: e["ev"] == "nobatch", put("step", "ev"), "batch"),
    "queue order": ("B", lambda e: len(e.get("wait", [])) > 1, lambda e: e["wait"].reverse(), "wait"),
    "running order": ("B", lambda e: len(e.get("run", [])) > 1, lambda e: e["run"].reverse(), "run"),
    "full flag": ("D2", is_step, flip("full"), "full"),
    "chunked": ("A", lambda e: e.get("chunked"), put(None, "chunked"), "chunked"),
    "ratio": ("A", is_step, bump("ratio", by=0.001), "ratio"),
    "avail": ("A", is_step, bump("post", "avail"), "avail"),
    "evictable": ("A", is_step, bump("post", "evictable"), "evictable"),
    "protected": ("A", is_step, bump("post", "protected"), "protected"),
    "window avail": ("J2", is_step, bump("post", "swa_avail"), "swa_avail"),
    "window evictable": ("J2", is_step, bump("post", "swa_evictable"), "swa_evictable"),
    "session": ("I", lambda e: "sess" in e.get("post", {}), lambda e: e["post"]["sess"].popitem(), "sess"),
    "test need": ("D2", lambda e: e.get("adm"), bump("adm", 0, "need"), "adm r00 need"),
    "test rem": ("D2", lambda e: e.get("adm"), bump("adm", 0, "rem"), "adm r00 rem"),
    "test ok": ("D2", lambda e: e.get("adm"), flip("adm", 0, "ok"), "adm r00 ok"),
    "test extend": ("D2", lambda e: e.get("adm"), bump("adm", 0, "extend"), "adm r00 extend"),
    "test missing": ("D2", lambda e: e.get("adm"), lambda e: e["adm"].pop(), "adm"),
    "chunk more": (
        "A",
        lambda e: e.get("adm") and "more" in e["adm"][0],
        flip("adm", 0, "more"),
        "adm A1 more",
    ),
    "evicted leaf": ("F/rep1", lambda e: e.get("evict"), bump("evict", 0, "leaves", 0), "evict"),
    "eviction missing": ("F/rep1", lambda e: e.get("evict"), lambda e: e.pop("evict"), "evict"),
    "touch": ("E/rep1", lambda e: e.get("touch"), bump("touch", 0), "touch"),
    "retraction": ("D/rep1", lambda e: e.get("retract"), put([], "retract", 0, "retracted"), "retract"),
    "result finished": ("A", lambda e: e.get("fin"), put([], "fin"), "fin"),
    "result outputs": ("A", lambda e: e["ev"] == "result", bump("out", 0, 1), "out"),
    "result dropped": ("F/rep1", lambda e: e.get("skipped"), put([], "skipped"), "skipped"),
    "result pool": ("A", lambda e: e["ev"] == "result", bump("mem", "avail"), "avail"),
    "idle pool": ("A", lambda e: e["ev"] == "idle", bump("mem", "evictable"), "evictable"),
    "result of nothing": ("A", lambda e: e["ev"] == "result", bump("step", by=5), "result"),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_a_tampered_log_is_reported(kind, tmp_path):
    """Each kind of difference, by its name and its line of the log."""
    name, holds, tamper, field = TAMPERINGS[kind]
    folder = copy(RECORDINGS / name, tmp_path / "tampered")
    events = read_log(folder)
    line, event = first(events, holds)
    tamper(event)
    if event["ev"] == "step":
        event.setdefault("step", 0)
        event.setdefault("reqs", [])
        event.setdefault("mode", "decode")
    write_log(folder, events)
    found = replay(folder).differences
    assert (found[0].line, found[0].field) == (line, field), [str(difference) for difference in found[:3]]


def test_a_lost_arrival_ends_the_replay_where_the_two_go_apart(tmp_path):
    """What follows a different decision says nothing: it is not compared."""
    folder = copy(RECORDINGS / "A", tmp_path / "lost")
    events = read_log(folder)
    line, _ = first(events, lambda e: e["ev"] == "arrive")
    del events[line - 1]
    write_log(folder, events)
    report = replay(folder)
    assert report.stopped_at == report.differences[0].line
    assert not report.same


# Malformed folders.


def test_a_folder_without_files_names_them_and_a_fix(tmp_path):
    with pytest.raises(InputError, match=r"no server\.json.*a recording is a folder with"):
        replay(tmp_path)
    with pytest.raises(InputError, match=r"D: no server\.json.*try .*rep1"):
        replay(RECORDINGS / "D")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("server.json", "{", r"server\.json: is no JSON"),
        ("server.json", "[]", r"server\.json: is list, not an object"),
        ("server.json", "{}", r"server\.json: launch_args: is missing; record the run again"),
        ("workload.json", '{"requests": [3]}', r"workload\.json: requests\[0\]: is 3, not an object"),
        ("workload.json", '{"requests": []}', r"steps\.jsonl\.gz:1: rid: 'A1' is not in workload\.json"),
        ("responses.json", '{"A1": 3}', r"responses\.json: A1: is 3, not of kind dict"),
        ("server.json", "[" * 100_000, r"server\.json: is no JSON"),
    ],
)
def test_a_malformed_file_is_named_with_its_field(file, text, message, tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "malformed")
    (folder / file).write_text(text)
    with pytest.raises(InputError, match=message):
        replay(folder)


def test_a_malformed_log_line_is_named(tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "malformed")
    events = read_log(folder)
    line, event = first(events, is_step)
    del event["post"]
    write_log(folder, events)
    with pytest.raises(InputError, match=rf"steps\.jsonl\.gz:{line}: post: is missing"):
        replay(folder)


def test_a_log_that_is_cut_off_is_named(tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "cut")
    log = folder / "steps.jsonl.gz"
    log.write_bytes(log.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"steps\.jsonl\.gz:\d+: cannot be read"):
        replay(folder)


def test_an_unknown_policy_is_refused(tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "policy")
    server = json.loads((folder / "server.json").read_text())
    server["launch_args"]["schedule_policy"] = "random"
    (folder / "server.json").write_text(json.dumps(server))
    with pytest.raises(InputError, match="'random' is not modelled; use fcfs or lpm"):
        replay(folder)


@pytest.mark.parametrize(
    ("file", "keys", "value", "message"),
    [
        ("server.json", ("launch_args", "page_size"), 0, r"launch_args: page_size: is 0, not a size"),
        ("server.json", ("launch_args", "page_size"), 10**30, r"launch_args: page_size: is 10+, not a size"),
        ("server.json", ("launch_args", "page_size"), 7, r"pool_tokens: \d+ is no multiple of page_size 7"),
        (
            "server.json",
            ("launch_args", "chunked_prefill_size"),
            -1,
            r"chunked_prefill_size: is -1, not a size",
        ),
        ("server.json", ("pool_tokens",), 0, r"server\.json: pool_tokens: is 0, not a size"),
        ("workload.json", ("requests", 0, "input_ids"), [], r"requests\[0\]: input_ids: the prompt is empty"),
        ("workload.json", ("requests", 0, "input_ids", 1), [5], r"input_ids\[1\]: is \[5\], not a token id"),
        ("workload.json", ("requests", 0, "input_ids", 1), True, r"input_ids\[1\]: is True, not a token id"),
        ("responses.json", ("A1", "output_ids", 0), -5, r"A1: output_ids\[0\]: is -5, not a token id"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_field(file, keys, value, message, tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "malformed")
    content = json.loads((folder / file).read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        replay(folder)


@pytest.mark.parametrize("row", [None, 5, [], ["r1", 3]])
def test_a_batch_row_that_is_none_is_named(row, tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "malformed")
    events = read_log(folder)
    line, event = first(events, is_step)
    event["reqs"][0] = row
    write_log(folder, events)
    with pytest.raises(InputError, match=rf"steps\.jsonl\.gz:{line}: reqs\[0\]: is .*, not a row of 9"):
        replay(folder)


@pytest.mark.parametrize("events", [[], [{"ev": "pause"}]])
def test_a_log_without_a_round_is_no_success(events, tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "empty")
    write_log(folder, events)
    with pytest.raises(InputError, match=r"steps\.jsonl\.gz: holds no round"):
        replay(folder)


def test_a_missing_file_is_not_answered_with_the_same_folder(tmp_path):
    folder = copy(RECORDINGS / "A", tmp_path / "lacking")
    (folder / "server.json").unlink()
    with pytest.raises(InputError, match=r"lacking: no server\.json; a recording is a folder with"):
        replay(folder)


def test_what_the_scheduler_holds_impossible_is_a_difference(tmp_path):
    """A session's turn that does not repeat the turn before it: no server serves that, so the recording differs."""
    folder = copy(RECORDINGS / "I2", tmp_path / "torn")
    workload = json.loads((folder / "workload.json").read_text())
    workload["requests"][0]["input_ids"][0] += 1
    (folder / "workload.json").write_text(json.dumps(workload))
    report = replay(folder)
    assert report.differences[-1].field == "possible"
    assert "does not continue session" in str(report.differences[-1])
    assert report.stopped_at is not None
