# SPDX-License-Identifier: Apache-2.0
"""`sqsim run`: simulate a scenario and print its metrics and notes; `sqreal run` prints the same way."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sqsim.cli.output import (
    Changes,
    Json,
    Overwrite,
    Quiet,
    print_json,
    print_line,
    print_pairs,
    print_rows,
    progress_bar,
)
from sqsim.errors import RunError
from sqsim.experiments.intervals import (
    DRAWS,
    Alternative,
    Intervals,
    check_draws,
    intervals,
    write_intervals,
)
from sqsim.record.evidence import HELD_FIXED
from sqsim.record.files import check_writable, read_record
from sqsim.record.lateness import lateness_note
from sqsim.record.metrics import Value, metrics
from sqsim.record.schema import RunRecord
from sqsim.scenario.scenario import load_scenario
from sqsim.simulation.simulate import simulate, simulate_to

_SHOWN = [
    *("tasks_completed", "tasks_failed", "run_time_s", "output_tok_s", "total_tok_s"),
    *("kv_capacity_tokens", "kv_usage_peak", "kv_usage_mean", "peak_tokens_mean", "kv_reads_main_tokens"),
    *("evictions", "evicted_then_used", "aux_spawned", "aux_applied", "aux_late", "retractions"),
    *("ttft_s_p50", "ttft_s_p99", "tpot_s_p50", "tpot_s_p99", "task_s_p50", "task_s_p90"),
]
"""Metrics printed in the table; --json prints every metric."""


def print_run(
    record: RunRecord, found: Mapping[str, Value], output_dir: Path | None, sure: Intervals | None = None
) -> None:
    """Print the main metrics of a run, with their intervals if known, and notes."""
    scenario = record.run["scenario"]
    title = (
        f"{scenario['policy']['name']} / {scenario['engine']['cache']}, "
        f"{scenario['model']} on {scenario['engine']['gpu']}"
    )
    shown = [(name, found[name]) for name in _SHOWN if found.get(name) is not None]
    if sure is None:
        print_pairs(title, shown)
    else:
        columns = ["metric", "value", f"{sure.confidence:.0%} from", "to", "sd: profile", "sd: chance"]
        print_rows(title, columns, [[name, value, *_interval(sure, name)] for name, value in shown])
    for note in [*_notes(record, found), *([] if sure is None else _doubts(sure))]:
        print_line(f"- {note}")
    if output_dir is not None:
        print_line(f"- record: {output_dir}")


def _interval(sure: Intervals, name: str) -> list[Value]:
    band = sure.bands.get(name)
    return [None] * 4 if band is None else [band.low, band.high, band.parameter_sd, band.sampling_sd]


def _doubts(sure: Intervals) -> list[str]:
    """State the sources of uncertainty that the intervals cover, and those that they do not."""
    drawn = "; ".join(f"{term}: {what}" for term, what in sure.doubts.items()) or "nothing of the profile"
    by_chance = (
        ", ".join(sure.sampled) or "nothing: another seed changes nothing (resample: true draws tasks anew)"
    )
    return [
        f"the intervals cover, of the profile: {drawn}",
        f"the intervals cover, by chance: {by_chance}",
        "the intervals do not cover values that the scenario fixes or assumes, the scheduler, steps beyond the measured range",
        *(_alternative(name, other, sure) for name, other in sure.alternatives.items()),
    ]


_DECIDE = ("output_tok_s", "ttft_s_p99", "kv_capacity_tokens", "tasks_failed")
"""Metrics that a choice of kernel is judged by."""


def _alternative(name: str, other: Alternative, sure: Intervals) -> str:
    """State what another kernel, which the server may run, does to the main metrics."""
    if other.error is not None:
        return f"the server may run profile {name} instead, which cannot: {other.error}; {other.shown_by}"
    changed = [
        f"{key} {other.metrics[key]:.4g} instead of {sure.bands[key].value:.4g}"
        for key in _DECIDE
        if key in other.metrics and key in sure.bands and other.metrics[key] != sure.bands[key].value
    ]
    return f"the server may run profile {name} instead: {', '.join(changed) or 'no change'}; {other.shown_by}"


def require_completed(record: RunRecord, found: Mapping[str, Value]) -> None:
    """Raise RunError when no task completed and the scenario's turn limit is not the only reason."""
    if not found["tasks_completed"] and _failures(found).keys() - {"turn_limit"}:
        raise RunError(f"no task completed: {_failed(record, found)}")


def _failures(found: Mapping[str, Value]) -> dict[str, Value]:
    return {name.removeprefix("failed_"): n for name, n in found.items() if name.startswith("failed_") and n}


def _failed(record: RunRecord, found: Mapping[str, Value]) -> str:
    """Write failures by reason, with the limit that was met and the key that raises it."""
    fixes = {
        "context_limit": f"the context holds {record.run['context_length']} tokens; choose a model that holds more",
        "kv_capacity": _pools(record.run["kv_capacity"]),
        "turn_limit": "max_turns of the scenario",
    }
    return "; ".join(
        f"{number} x {reason}" + (f" ({fixes[reason]})" if reason in fixes else "")
        for reason, number in _failures(found).items()
    )


def _pools(capacity: Mapping[str, Any]) -> str:
    """Name the pools that were too small for a request, and the keys that enlarge each."""
    if capacity.get("swa_tokens") is None:
        return f"the pool holds {capacity['tokens']} tokens; raise engine.kv_capacity"
    return (
        f"the pool holds {capacity['tokens']} tokens, its part for sliding-window layers {capacity['swa_tokens']}; raise "
        "engine.kv_capacity, or engine.swa_full_tokens_ratio where only that part is too small"
    )


def _unreached(record: RunRecord) -> list[str]:
    """Warn of a closed loop with too few tasks to reach its concurrency."""
    asked = record.run["scenario"]["load"].get("concurrency")
    roots = record.tasks["parent"].null_count
    if asked is None or roots >= asked:
        return []
    return [f"{roots} tasks never make {asked} at a time: give more, or tasks: N with resample: true"]


def _notes(record: RunRecord, found: Mapping[str, Value]) -> list[str]:
    run, capacity = record.run, record.run["kv_capacity"]
    notes = [f"failed: {_failed(record, found)}"] if _failures(found) else []
    notes += _unreached(record)
    notes += [f"{'simulated' if run['kind'] == 'simulated' else 'measured'}; {HELD_FIXED}"]
    if run.get("status", "complete") != "complete":
        notes.append(f"the run ended early, and these numbers cover the part before: {run['ended_by']}")
    if "profile" in run:
        notes.append(f"profile {run['profile']['name']}: {run['profile']['summary']}")
    if (eviction := run.get("kernel_costs", {}).get("in_place")) is not None:
        notes.append(
            f"an eviction in place takes {eviction['fixed_s'] * 1e6:.3g} us and {eviction['per_token_s'] * 1e9:.3g} ns a "
            f"token after it, {eviction['evidence']}: {eviction['source']}"
        )
    scenario = run["scenario"]
    count, each = scenario.get("replicas", 1), ""
    if count > 1:
        each = " on each replica"
        notes.append(
            f"{count} replicas behind a router, {scenario['router']}: rates are of all of them together"
        )
    notes.append(f"KV capacity {capacity['tokens']} tokens{each}, {capacity['how']}")
    if run.get("time_scale", 1.0) != 1.0:
        notes.append(f"tools, users and arrivals took {run['time_scale']:g} times as long as recorded")
    notes += [
        f"{key}: the scenario states {values['scenario']}, the server has {values['server']}"
        for key, values in run.get("unlike_the_scenario", {}).items()
    ]
    if differences := run.get("server_metrics", {}).get("differences"):
        said = ", ".join(f"{name} {value:+d}" for name, value in differences.items())
        notes.append(f"the server's counts differ from this record ({said}): did others use it meanwhile?")
    if (live := run.get("live")) and live["derived_segments"]:
        notes.append(
            "aux threads decided live, but the trace lacks token ids, and the derived ids stand for no text: "
            "these decisions do not show how well the model decides"
        )
    if run["assumed"]:
        notes.append(f"assumed, not calibrated: {', '.join(run['assumed'])}")
    if (late := lateness_note(record)) is not None:
        notes.append(late)
    if run["references"].get("synthesised") and run["scenario"]["policy"]["name"] != "none":
        notes.append("references are synthesised: which responses are needed later is a guess")
    notes += [
        f"left the measured range in {steps} steps: {name}" for name, steps in run["out_of_range"].items()
    ]
    return notes + [f"refused: {reason}" for reason in run.get("refused", ())]


def run_command(
    scenario: Annotated[Path, typer.Argument(help="A scenario file (YAML).")],
    set_: Changes = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", help="Directory for the record.")] = None,
    with_intervals: Annotated[
        bool,
        typer.Option("--bands", help="Add a 90 % interval to every metric; takes many runs, on all cores."),
    ] = False,
    draws: Annotated[
        int,
        typer.Option("--draws", help="Number of sampled profiles for --bands: one less than a multiple of 20."),
    ] = DRAWS,
    overwrite: Overwrite = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one scenario, print its metrics, and write its record."""
    if output_dir is not None:
        check_writable(output_dir, overwrite)
    resolved = load_scenario(scenario, set_ or [])
    if with_intervals:
        check_draws(draws)
    started = time.perf_counter()
    with progress_bar("tasks", quiet) as progress:
        if output_dir is None:
            record = simulate(resolved, progress)
        else:
            simulate_to(resolved, output_dir, overwrite=overwrite, progress=progress)
            record = read_record(output_dir)
    found = {**metrics(record), "wall_s": time.perf_counter() - started}
    sure = None
    if with_intervals:
        with progress_bar("runs", quiet) as progress:
            sure = intervals(resolved, draws=draws, jobs=os.cpu_count() or 1, progress=progress, value=found)
        if output_dir is not None:
            write_intervals(output_dir, sure)
    if as_json:
        print_json(found if sure is None else {**found, "bands": sure.to_json()})
    else:
        print_run(record, found, output_dir, sure)
    require_completed(record, found)
