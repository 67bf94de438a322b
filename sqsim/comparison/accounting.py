# SPDX-License-Identifier: Apache-2.0
"""The token accounting of two runs, compared row by row: main steps, aux threads, evictions.

Two runs of one policy on the same tasks, such as a simulation and a measurement, must account for the same tokens
(law 10) as long as nothing depends on the timing of requests. With two requests at work one token does: where the step
after an answer's stop token is another request's prefill, that token gets no KV (RULES.md, rule 27), and the next turn
computes it. Law 10 allows for it, so turns that differ in this alone are counted separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqsim.comparison.experiment import Run, settings
from sqsim.record.schema import RunRecord

ACCOUNTED: Mapping[str, tuple[str, ...]] = {
    "turns": ("prompt_tokens", "cached_tokens", "computed_tokens", "resident_tokens_after", "output_tokens"),
    "aux": (
        *("spawn_turn", "state", "fork_tokens", "prompt_tokens", "cached_tokens", "output_tokens"),
        *("named", "applied_turn"),
    ),
    "evictions": ("turn", "cursor", "tokens", "by"),
}
"""The columns of each table that two runs of the same tasks under the same policy must agree on."""

_Rows = dict[tuple[str, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs: `column` is `base` in one run and `other` in the other.

    `index` is the turn of a main step, or the place of an aux thread or eviction among those of its task.
    """

    task: str
    index: int
    column: str
    base: Any
    other: Any


@dataclass(frozen=True, slots=True)
class Account:
    """The rows of one table in both runs."""

    rows: int  # in both
    rows_in_one: int
    rows_differing: int
    by_column: dict[str, int]  # rows that differ in this column
    differences: list[Difference]  # by task and index

    @property
    def same(self) -> bool:
        """Whether both runs have the same rows and values."""
        return not self.rows_in_one and not self.rows_differing


@dataclass(frozen=True, slots=True)
class Accounting:
    """The accounts of a run compared with its base."""

    base: str
    run: str
    turns: Account
    by_last_token: int  # rows of `turns` that differ only by an answer's last token (rule 27)
    aux: Account
    evictions: Account

    @property
    def tables(self) -> dict[str, Account]:
        """The accounts by the name of their table."""
        return {"turns": self.turns, "aux": self.aux, "evictions": self.evictions}

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return all(account.same for account in self.tables.values())


def comparable(base: RunRecord, other: RunRecord) -> bool:
    """Tell whether two runs have the same policy and cache, so that their accounts should agree."""
    return _replayed_as(base) == _replayed_as(other)


def accounting(base: Run, other: Run) -> Accounting:
    """Compare every row of `other` with the same row of `base`."""
    turns = _rows(base.record, "turns"), _rows(other.record, "turns")
    return Accounting(
        base=base.name,
        run=other.name,
        turns=_account("turns", *turns),
        by_last_token=_by_last_token(*turns, _page_size(base.record), _page_size(other.record)),
        aux=_account("aux", _rows(base.record, "aux"), _rows(other.record, "aux")),
        evictions=_account("evictions", _rows(base.record, "evictions"), _rows(other.record, "evictions")),
    )


def _replayed_as(record: RunRecord) -> tuple[Any, Any]:
    scenario = record.run.get("scenario", {})
    return scenario.get("policy"), scenario.get("engine", {}).get("cache")


def _rows(record: RunRecord, name: str) -> _Rows:
    """Collect the accounted values of a table, by task and index."""
    table = record.table(name)
    tasks: list[str] = table["task"].to_pylist()
    if name == "turns":
        places: list[int] = table["turn"].to_pylist()
    else:
        seen: dict[str, int] = {}
        places = []
        for task in tasks:
            places.append(seen.get(task, 0))
            seen[task] = places[-1] + 1
    columns = [table[column].to_pylist() for column in ACCOUNTED[name]]
    return {
        (task, place): values
        for task, place, values in zip(tasks, places, zip(*columns, strict=True), strict=True)
    }


def _account(name: str, ours: _Rows, theirs: _Rows) -> Account:
    both = sorted(ours.keys() & theirs.keys())
    columns = ACCOUNTED[name]
    differences = [
        Difference(*key, column, left, right)
        for key in both
        for column, left, right in zip(columns, ours[key], theirs[key], strict=True)
        if left != right
    ]
    return Account(
        rows=len(both),
        rows_in_one=len(ours.keys() ^ theirs.keys()),
        rows_differing=len({(found.task, found.index) for found in differences}),
        by_column={column: sum(found.column == column for found in differences) for column in columns},
        differences=differences,
    )


def _page_size(record: RunRecord) -> int:
    size = settings(record.run)["engine.page_size"]
    return size if isinstance(size, int) else 1


def _by_last_token(ours: _Rows, theirs: _Rows, our_page: int, their_page: int) -> int:
    """Count the turns that differ only in whether the last token of their answer, or of the one before, has KV.

    Such turns differ by one resident token, and the next turn by one cached token more or less (in a tree of whole pages:
    by a page or nothing), which is computed instead.
    """
    resident = ACCOUNTED["turns"].index("resident_tokens_after")
    found = 0
    for task, turn in ours.keys() & theirs.keys():
        row = zip(ACCOUNTED["turns"], ours[task, turn], theirs[task, turn], strict=True)
        off = {column: there - here for column, here, there in row if here != there}
        last = task, turn - 1
        findable = {0}
        if last in ours and last in theirs:
            here, there = ours[last][resident], theirs[last][resident]
            if abs(there - here) == 1:
                findable |= {there - here, there // their_page * their_page - here // our_page * our_page}
        cached = off.get("cached_tokens", 0)
        explained = {"resident_tokens_after", "cached_tokens", "computed_tokens"} >= off.keys()
        explained &= abs(off.get("resident_tokens_after", 0)) <= 1
        explained &= cached in findable and cached == -off.get("computed_tokens", 0)
        found += bool(off) and explained
    return found
