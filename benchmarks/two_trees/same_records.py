# SPDX-License-Identifier: Apache-2.0
"""Check that two trees of this repository write the same records, as a refactoring must.

    .venv/bin/python benchmarks/two_trees/same_records.py OLD_TREE NEW_TREE                      # all: 3 minutes on two idle cores
    .venv/bin/python benchmarks/two_trees/same_records.py OLD_TREE NEW_TREE --scenarios 2 --only session
    .venv/bin/python benchmarks/two_trees/same_records.py OLD_TREE NEW_TREE --speed              # paired: which tree is slower

Each tree runs its own `sqsim run`, found through its pyproject.toml, on the same scenario files: those of
`same_matrix.py`. Compared are every file of the record byte for byte (timing.json left out; run.json less the version,
the code's digest and the sums), the metrics that are printed (less wall_s), the exit code, and the error of
what is refused; the traces that the trees synthesise and import as well. Exit code 1: something differs, and it is named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from same_matrix import SCENARIOS, TRACES, Combination, change_traces, combinations, timed
from trees import CRASHED, Pair, Ran, pairs

LEFT_OUT = re.compile(r"(tables_)?sha256|digest|code|versions\.(sqsim.*|.*digest|code.*)")
"""Keys of run.json that are not compared: our version, our code's digest, the seal over the file, and the sums of tables
that are compared themselves."""
OUT = "out"
BATCH = 3
"""Runs that are timed as one."""
COUNTED = ("tasks_completed", "evictions", "aux_applied", "retractions", "pauses")


def make_traces(pair: Pair) -> list[str]:
    """Make the traces with both trees; use the old tree's. Return the differences."""
    problems = []
    for name, arguments in TRACES.items():
        ran = pair.run(["trace", *arguments, "-o", f"{name}.jsonl"])
        if any(each.code for each in ran):
            raise SystemExit(f"trace {name}: {' '.join(each.stderr.strip() for each in ran)}")
        mine, other = (tree.folder / f"{name}.jsonl" for tree in (pair.old, pair.new))
        if mine.read_bytes() != other.read_bytes():
            problems.append(f"trace {name}: {_first_line(mine, other)}")
        shutil.move(mine, pair.old.folder / "traces")
        other.unlink()
    change_traces(pair.old.folder / "traces")
    return problems


def _first_line(old: Path, new: Path) -> str:
    lines = [file.read_text().splitlines() for file in (old, new)]
    number = next((at for at, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]), None)
    return f"{len(lines[0])} and {len(lines[1])} lines" if number is None else f"line {number + 1}"


# One combination.


class Outcome(NamedTuple):
    """Result of comparing one combination.

    `differences` are empty where both trees did the same, `words` where their errors read the same too.
    """

    what: Combination
    refused: bool
    differences: list[str]
    words: list[str]
    counts: Counter[str]


def compare(pair: Pair, what: Combination) -> Outcome:
    """Run one combination in both trees and compare all outputs."""
    pair.write("scenario.yaml", what.keys)
    old, new = pair.run(["run", "scenario.yaml", "--output-dir", OUT, "--json", "--quiet"])
    folders = [tree.folder / OUT for tree in (pair.old, pair.new)]
    refused = not any(folder.exists() for folder in folders)
    differences = [f"crashed: {ran.stderr.strip()}" for ran in (old, new) if ran.code == CRASHED]
    if old.code != new.code:
        differences.append(f"exit code: {old.code} -> {new.code}; {_text(old)!r} -> {_text(new)!r}")
    said = f"said: {_text(old)!r} -> {_text(new)!r}"
    words = [said] if old.code == new.code and old.stderr != new.stderr else []
    if refused:
        if not old.code:
            differences.append("exit code 0 and no record")
        return Outcome(what, refused, differences, words, Counter())
    differences += directories(*folders)
    metrics = _metrics(old)
    differences += first_difference(metrics, _metrics(new), "metrics")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    counts = Counter({name: metrics.get(name) or 0 for name in COUNTED})
    return Outcome(what, refused, differences, words, counts)


def _text(ran: Ran) -> str:
    return ran.stderr.strip()[:400]


def _metrics(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.stdout) if ran.stdout.strip() else {}
    return {name: value for name, value in found.items() if name != "wall_s"}


def directories(old: Path, new: Path) -> list[str]:
    """Name the files of two records that differ, each with its first difference."""
    names = [{file.name for file in folder.iterdir()} if folder.exists() else set() for folder in (old, new)]
    found = [f"{name}: only in one record" for name in sorted(names[0] ^ names[1])]
    for name in sorted((names[0] & names[1]) - {"timing.json"}):
        if name == "run.json":
            found += first_difference(_run(old / name), _run(new / name), name)
        elif (old / name).read_bytes() != (new / name).read_bytes():
            found.append(f"{name}: {_first_row(old / name, new / name)}")
    return found


def _run(file: Path) -> dict[str, Any]:
    """Read run.json, with numbers as they are written, without the fields that may differ."""
    content: dict[str, Any] = json.loads(file.read_bytes(), parse_float=str)
    content["versions"] = {
        name: value for name, value in content["versions"].items() if not LEFT_OUT.fullmatch(f"versions.{name}")
    }
    return {name: value for name, value in content.items() if not LEFT_OUT.fullmatch(name)}


def first_difference(old: object, new: object, path: str) -> list[str]:
    """Name the first place at which two JSON values differ, key order included; empty if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        if list(old) != list(new):
            other = sorted(old.keys() ^ new.keys())
            return [f"{path}: {'only in one: ' + ', '.join(other) if other else 'keys in another order'}"]
        parts = [first_difference(old[name], new[name], f"{path}.{name}") for name in old]
        return next((found for found in parts if found), [])
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [
            first_difference(mine, other, f"{path}[{at}]")
            for at, (mine, other) in enumerate(zip(old, new, strict=True))
        ]
        return next((found for found in parts if found), [])
    same = type(old) is type(new) and (old == new or old != old)  # noqa: PLR0124 - nan
    return [] if same else [f"{path}: {str(old)[:200]} -> {str(new)[:200]}"]


def _first_row(old: Path, new: Path) -> str:
    tables = [pq.read_table(file) for file in (old, new)]
    if tables[0].schema != tables[1].schema:
        return f"columns {tables[0].schema.names} -> {tables[1].schema.names}"
    rows = [table.to_pylist() for table in tables]
    for at, (mine, other) in enumerate(zip(*rows, strict=False)):
        if found := first_difference(mine, other, f"row {at}"):
            return found[0]
    return (
        "bytes only, the rows are equal"
        if len(rows[0]) == len(rows[1])
        else f"{len(rows[0])} -> {len(rows[1])} rows"
    )


# The whole matrix.


def compare_all(found: list[Pair], wanted: Iterable[Combination]) -> list[Outcome]:
    """Compare all combinations, one per pair of trees at a time; print each scenario's name to stderr when it begins."""
    free: SimpleQueue[Pair] = SimpleQueue()
    for pair in found:
        free.put(pair)

    def one(what: Combination) -> Outcome:
        pair = free.get()
        try:
            return compare(pair, what)
        finally:
            free.put(pair)

    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(len(found)) as threads:
        try:
            for outcome in threads.map(one, wanted):
                if not outcomes or outcomes[-1].what.scenario != outcome.what.scenario:
                    print(f"{outcome.what.scenario} ...", file=sys.stderr, flush=True)
                outcomes.append(outcome)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # or all the rest would run first
            raise
    return outcomes


def print_table(outcomes: list[Outcome]) -> None:
    """Print one line per scenario and a total; the counts are of the old tree's records."""
    columns = ("run", "refused", "said otherwise", "different", *COUNTED)
    print(f"{'scenario':18}" + "".join(f"{column:>{len(column) + 3}}" for column in columns))
    for scenario in (*SCENARIOS, "all"):
        mine = [each for each in outcomes if scenario in (each.what.scenario, "all")]
        counts = sum((each.counts for each in mine), Counter[str]())
        figures = [
            sum(not each.refused for each in mine),
            sum(each.refused and not each.differences for each in mine),
            sum(bool(each.words) for each in mine),
            sum(bool(each.differences) for each in mine),
            *(counts[name] for name in COUNTED),
        ]
        if mine:
            cells = zip(columns, figures, strict=True)
            print(f"{scenario:18}" + "".join(f"{figure:>{len(column) + 3},}" for column, figure in cells))


def print_speed(pair: Pair, repeats: int) -> None:
    """Time both trees in turns: processor seconds of `sqsim run`, and the ratio of the new tree to the old one."""
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {repeats} pairs, {BATCH} runs each"
    )
    print(f"{'case':24}{'old cpu s':>11}{'new cpu s':>11}{'new / old':>11}   from     to")
    arguments = ["run", "scenario.yaml", "--output-dir", OUT, "--overwrite", "--quiet"]
    for what in timed():
        pair.write("scenario.yaml", what.keys)
        taken: list[tuple[float, float]] = []
        for number in range(repeats + 1):
            trees = [pair.old, pair.new][:: 1 if number % 2 else -1]  # A B, B A: a drift of the machine cancels
            seconds = {id(tree): sum(_timed(tree.run(arguments)) for _ in range(BATCH)) for tree in trees}
            taken.append((seconds[id(pair.old)], seconds[id(pair.new)]))
        taken = taken[1:]  # the first pair warms up
        ratios = [new / old for old, new in taken]
        old_s, new_s = (statistics.median(each) / BATCH for each in zip(*taken, strict=True))
        print(
            f"{what.policy + ' / ' + what.cache:24}{old_s:>11.3f}{new_s:>11.3f}{statistics.median(ratios):>11.3f}"
            f"  {min(ratios):.3f}  {max(ratios):.3f}"
        )


def _timed(ran: Ran) -> float:
    if ran.code:
        raise SystemExit(f"a timed run failed: {ran.stderr.strip()}")
    return ran.cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="the tree whose records are right")
    parser.add_argument("new", type=Path, help="the tree to compare with it")
    parser.add_argument("--scenarios", type=int, default=len(SCENARIOS), help="run only the first N scenarios")
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes at a time; both trees run together from 2 on"
    )
    parser.add_argument(
        "--only", default="", help="a regular expression that SCENARIO / POLICY / CACHE / LOAD has to hold"
    )
    parser.add_argument(
        "--words-may-differ", action="store_true", help="list errors that read otherwise, and let them pass"
    )
    parser.add_argument("--speed", action="store_true", help="time both trees instead")
    parser.add_argument("--pairs", type=int, default=9, help="paired timings of each case (--speed)")
    asked = parser.parse_args()
    started = time.perf_counter()
    with pairs(asked.old.resolve(), asked.new.resolve(), 1 if asked.speed else asked.jobs) as found:
        problems = make_traces(found[0])
        if asked.speed:
            print_speed(found[0], asked.pairs)
            return
        wanted = [each for each in combinations(asked.scenarios) if re.search(asked.only, each.name)]
        outcomes = compare_all(found, wanted)
    print_table(outcomes)
    problems += [f"{each.what.name}: {text}" for each in outcomes for text in each.differences]
    words = [f"{each.what.name}: {text}" for each in outcomes for text in each.words]
    for line in (*problems, *words):
        print(line)
    if not asked.words_may_differ:
        problems += words
    print(f"{len(outcomes)} combinations in {time.perf_counter() - started:.0f} s; {len(problems)} differences")
    if problems or not outcomes:
        sys.exit(1)


if __name__ == "__main__":
    main()
