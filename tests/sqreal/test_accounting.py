# SPDX-License-Identifier: Apache-2.0
"""What the step log says of requests and engine, on recorded schedules of a real SGLang (tests/data/sglang-schedules)."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from sqreal.replay.accounting import Accounting, events
from sqsim.agent.served import Served
from sqsim.fidelity.recording import read_recording

DATA = Path(__file__).parents[1] / "data" / "sglang-schedules"
NAMES = ["A", "C/rep1", "D/rep1", "F/rep1", "G2", "J2", "K2", "L", "N", "O", "S1", "X1", "X7", "Y6"]
ABORTED = {"N", "X7"}


def log_of(name: str, directory: Path, *, lines: int | None = None) -> Path:
    """The log as the plugin writes it: plain text."""
    text = gzip.decompress((DATA / name / "steps.jsonl.gz").read_bytes()).decode()
    path = directory / "steps.jsonl"
    path.write_text("".join(text.splitlines(keepends=True)[:lines]))
    return path


def accounting_of(name: str, log: Path) -> Accounting:
    limits = read_recording(DATA / name).limits
    found = Accounting(limits.kv_capacity, limits.swa_capacity, t0_s=-1.0)
    found.read(events(log, -1.0), end_s=0.0)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_log_accounts_for_what_the_answers_say(name, tmp_path):
    """README.md of the recordings: extend rows add up to prompt_tokens - cached_tokens; rule 27 for what stays."""
    found = accounting_of(name, log_of(name, tmp_path))
    for rid, response in json.loads((DATA / name / "responses.json").read_text()).items():
        if response["finish_reason"]["type"] == "abort":
            continue
        served = Served(0.0, response["prompt_tokens"], resident_tokens=-1)
        found.fill(rid, served)
        assert served.retractions == response["num_retractions"]
        if not served.retractions:
            assert served.computed_tokens == response["prompt_tokens"] - response["cached_tokens"]
        assert served.resident_tokens - response["prompt_tokens"] - response["completion_tokens"] in {-1, 0}
        assert served.prefill_chunks >= 1
        assert served.admit_s is not None
        assert served.admit_s > response["t_submit"] + 1.0
    assert name in ABORTED or sum(a.retractions for a in found.accounts.values()) == sum(
        row["retracted"] for row in found.engine.table().to_pylist()
    )


@pytest.mark.parametrize("name", NAMES)
def test_engine_rows_follow_one_another_and_their_memory_adds_up(name, tmp_path):
    """Laws 2 and 3 of simulated runs, on real ones."""
    capacity = read_recording(DATA / name).limits.kv_capacity
    rows = accounting_of(name, log_of(name, tmp_path)).engine.table().to_pylist()
    assert len([row for row in rows if row["steps"]]) == sum(
        '"ev":"step"' in line for line in (tmp_path / "steps.jsonl").read_text().splitlines()
    )
    for row in rows:
        held = [row[f"kv_{part}"] for part in ("running", "idle_sessions", "aux", "tree_evictable", "free")]
        assert min(held) >= 0
        assert sum(held) == capacity
        assert row["kv_used_mean"] == held[0] + held[1] + held[2]
        assert row["context_tokens"] >= row["new_tokens"]
    for before, after in itertools.pairwise(rows):
        assert before["t0_s"] < before["t1_s"] == after["t0_s"]
    assert {row["mode"] for row in rows} >= {"prefill", "decode"}


def test_a_hybrid_model_has_window_slots_in_use(tmp_path):
    rows = accounting_of("J2", log_of("J2", tmp_path)).engine.table().to_pylist()
    assert max(row["swa_used"] for row in rows) > 0
    assert accounting_of("A", log_of("A", tmp_path)).engine.table()["swa_used"].null_count


def test_a_log_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path):
    log = log_of("F/rep1", tmp_path, lines=100)
    log.write_text(log.read_text() + '{"n":100,"ev":"ste')
    whole = list(events(log, -1.0))
    assert len(whole) == 100
    assert accounting_of("F/rep1", log).engine.table().num_rows > 40


def test_what_came_before_the_run_is_left_out(tmp_path):
    log = log_of("A", tmp_path)
    late = list(events(log, 0.2))
    assert 0 < len(late) < sum(1 for _ in events(log, -1.0))
    assert {row[0] for event in late for row in event.get("reqs", ())} == {"A2", "A3"}


def test_a_request_that_the_log_does_not_know_keeps_what_its_answer_said():
    served = Served(0.0, 10, computed_tokens=10, resident_tokens=14)
    Accounting(100, None, 0.0).fill("0/0/", served)
    assert (served.computed_tokens, served.resident_tokens, served.admit_s) == (10, 14, None)
