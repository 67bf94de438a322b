# SPDX-License-Identifier: Apache-2.0
"""Comparison of runs: differences against the first, and what makes two runs incomparable."""

from __future__ import annotations

import copy
import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sqsim.comparison.accounting import ACCOUNTED, Difference
from sqsim.comparison.runs import change_percent, compare
from sqsim.errors import RecordError
from sqsim.record.metrics import metrics
from sqsim.record.schema import TURNS, RunRecord
from tests.sqsim.tiny_record import tiny_record


def other(**run) -> RunRecord:
    record = tiny_record()
    record.run = {**copy.deepcopy(record.run), **run}
    return record


def with_column(record, name, values):
    position = TURNS.get_field_index(name)
    record.turns = record.turns.set_column(position, TURNS.field(position), pa.array(values, pa.int64()))
    return record


def test_a_run_differs_from_itself_in_nothing():
    found = compare(tiny_record(), tiny_record(), names=["a", "b"])
    assert found.runs == ["a", "b"]
    assert all(row.values[0] == row.values[1] for row in found.metrics.values())
    assert all(row.change_percent[1] in {0.0, None} for row in found.metrics.values())
    assert found.differing == {}
    assert found.missing_tasks == {"a": [], "b": []}
    (account,) = found.accounting
    assert (account.base, account.run, account.same) == ("a", "b", True)
    assert (account.turns.rows, account.aux.rows, account.evictions.rows) == (3, 2, 1)


def test_every_metric_stands_side_by_side():
    records = [tiny_record(), with_column(tiny_record(), "output_tokens", [22, 0, 10])]
    rows = compare(*records).metrics
    assert {key: row.values for key, row in rows.items()} == {
        key: [value, metrics(records[1])[key]] for key, value in metrics(records[0]).items()
    }
    assert rows["output_tokens"].change_percent == [0.0, 100.0]


@pytest.mark.parametrize(
    ("base", "value", "change"),
    [
        (200, 100, -50.0),
        (2.0, 3.0, 50.0),
        (-2.0, -1.0, 50.0),
        (0, 0, 0.0),
        (0, 1, None),
        (None, 1, None),
        (1, None, None),
        (True, False, None),
        ("x", "y", None),
    ],
)
def test_changes_are_signed_percent_of_the_base(base, value, change):
    assert change_percent(base, value) == change


def test_a_reason_that_only_one_run_failed_by_counts_zero_in_the_other():
    done = tiny_record()
    done.tasks = done.tasks.filter(pc.equal(done.tasks["outcome"], "completed"))
    found = compare(done, tiny_record(), names=["done", "failed"])
    assert found.metrics["failed_context_limit"].values == [0, 1]
    assert found.missing_tasks == {"done": ["b"], "failed": []}


def test_what_the_runs_differ_in_is_named_by_key_path():
    scenario = copy.deepcopy(tiny_record().run["scenario"])
    scenario["engine"]["cache"] = "radix"
    scenario["policy"] = {"name": "none"}
    found = compare(tiny_record(), other(scenario=scenario, kind="real"), tiny_record())
    assert found.differing == {
        "kind": ["simulated", "real", "simulated"],
        "scenario.engine.cache": ["session", "radix", "session"],
        "scenario.policy.k": [4, None, 4],
        "scenario.policy.name": ["sidequest", "none", "sidequest"],
    }
    assert [account.run for account in found.accounting] == ["3"]  # another policy accounts for other tokens


def test_runs_on_other_traces_are_refused_unless_allowed():
    records = [tiny_record(), other(traces=[{"path": "t.jsonl", "sha256": "cd" * 32}])]
    with pytest.raises(
        RecordError, match=r"b: ran on other traces than a \(sha256 cdcdcdcdcdcd, not abababababab\); "
    ):
        compare(*records, names=["a", "b"])
    assert compare(*records, allow_other_traces=True).accounting[0].turns.rows == 3


def test_a_trace_is_known_by_its_content_not_by_its_path():
    assert compare(tiny_record(), other(traces=[{"path": "moved.jsonl", "sha256": "ab" * 32}])).differing == {}


@pytest.mark.parametrize("number", [0, 1])
def test_a_comparison_takes_two(number):
    with pytest.raises(RecordError, match="at least two"):
        compare(*[tiny_record()] * number)


@pytest.mark.parametrize("column", ACCOUNTED["turns"])
def test_accounts_are_compared_turn_by_turn(column):
    """Law 10: a simulation and a measurement of one policy account for the same tokens in every turn."""
    base = tiny_record()
    values = base.turns[column].to_pylist()
    changed = with_column(tiny_record(), column, [values[0], values[1], values[2] + 7])
    (account,) = compare(base, changed).accounting
    assert account.turns.differences == [Difference("a", 1, column, values[2], values[2] + 7)]
    assert (account.turns.rows_differing, account.by_last_token) == (1, 0)
    assert account.turns.by_column == {name: int(name == column) for name in ACCOUNTED["turns"]}


def test_the_last_token_of_an_answer_is_told_apart():
    """Law 10 allows the one token that a stop leaves or not (RULES.md, rule 27), and names it."""
    values = tiny_record().turns["resident_tokens_after"].to_pylist()
    changed = with_column(tiny_record(), "resident_tokens_after", [values[0] - 1, values[1], values[2] + 2])
    (account,) = compare(tiny_record(), changed).accounting
    assert (account.turns.rows_differing, account.by_last_token) == (2, 1)


@pytest.mark.parametrize(
    ("page", "first", "resident", "cached", "computed", "explained"),
    [
        (1, 111, 205, 111, 89, 2),  # the next turn finds the token that this run kept
        (1, 109, 205, 109, 91, 2),  # or computes the one that it did not
        (1, 109, 204, 109, 91, 2),  # and its own last token may go the same way
        (1, 109, 205, 108, 92, 1),  # one token does not explain two
        (1, 109, 205, 111, 89, 1),  # nor that one more is found
        (1, 109, 205, 109, 90, 1),  # what is not found is computed
        (1, 110, 205, 109, 91, 0),  # without a last token there is nothing to explain
        (10, 109, 205, 100, 100, 2),  # of whole pages a page is missing
        (10, 109, 205, 90, 110, 1),
        (10, 111, 205, 120, 80, 1),  # 110 and 111 fill the same pages
    ],
)
def test_the_next_turn_may_lack_the_last_token(page, first, resident, cached, computed, explained):
    """RULES.md, rules 27 and 28: what the next turn of a tree finds is the whole pages of what has KV."""
    records = tiny_record(), tiny_record()
    for record in records:
        record.run = copy.deepcopy(record.run)
        record.run["scenario"].setdefault("engine", {})["page_size"] = page
    changed = with_column(records[1], "resident_tokens_after", [first, 0, resident])
    changed = with_column(changed, "cached_tokens", [0, 0, cached])
    changed = with_column(changed, "computed_tokens", [100, 0, computed])
    (account,) = compare(records[0], changed).accounting
    assert account.by_last_token == explained


def test_turns_of_one_run_only_are_counted():
    fewer = tiny_record()
    fewer.turns = fewer.turns.filter(pc.equal(fewer.turns["turn"], 0))
    (account,) = compare(tiny_record(), fewer).accounting
    assert (account.turns.rows, account.turns.rows_in_one) == (2, 1)


def test_a_comparison_is_json():
    changed = with_column(tiny_record(), "cached_tokens", [1, 2, 3])
    plain = json.loads(json.dumps(compare(tiny_record(), changed, names=["a", "b"]).to_json(), allow_nan=False))
    assert plain["metrics"]["cached_tokens"]["values"] == [110, 6]
    assert plain["accounting"][0]["turns"]["differences"][0] == {
        "task": "a",
        "index": 0,
        "column": "cached_tokens",
        "base": 0,
        "other": 1,
    }
