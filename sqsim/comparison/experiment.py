# SPDX-License-Identifier: Apache-2.0
"""A run's experiment: which runs belong to one, which are repeats, and warnings before comparing them.

An *experiment* is a scenario without the keys that the server settles: traces by their content, tasks, model, GPU, load,
policy, cache, seed. A simulation and a measurement of one experiment are compared. *Repeats* are real runs of one
experiment on alike servers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqsim.record.lateness import lateness_note
from sqsim.record.schema import COMPLETED, RunRecord

_OWN = frozenset(
    {
        *("profile", "mem_fraction", "kv_capacity", "swa_full_tokens_ratio", "context_length"),
        *("page_size", "max_running", "chunked_prefill", "schedule_conservativeness"),
    }
)
"""Keys of `engine` that a real server settles, or that only a simulation has."""
_LIMITS = ("page_size", "max_running", "chunked_prefill", "schedule_conservativeness")
"""Those of them that run.json states in the scenario alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """A record, its name in results, and its directory if it has one."""

    name: str
    record: RunRecord
    directory: Path | None = None

    @property
    def is_real(self) -> bool:
        """Whether the run was measured on a server."""
        return bool(self.record.run.get("kind") == "real")


def experiment(run: dict[str, Any]) -> str:
    """Return the identity of a run's experiment, as text; `run` is a run.json."""
    scenario = {key: value for key, value in run.get("scenario", {}).items() if key != "traces"}
    scenario["engine"] = {key: v for key, v in scenario.get("engine", {}).items() if key not in _OWN}
    return json.dumps(
        [scenario, sorted(str(one.get("sha256")) for one in run.get("traces", []))], sort_keys=True
    )


def settings(run: dict[str, Any]) -> dict[str, Any]:
    """Return the limits that the server used, by key path of the scenario."""
    engine = run.get("scenario", {}).get("engine", {})
    found = {f"engine.{name}": engine.get(name) for name in _LIMITS}
    found |= {key: values["server"] for key, values in run.get("unlike_the_scenario", {}).items()}
    capacity = run.get("kv_capacity", {})
    return found | {
        "engine.kv_capacity": capacity.get("tokens"),
        "engine.kv_capacity of the sliding window": capacity.get("swa_tokens"),
        "engine.context_length": run.get("context_length"),
    }


def repeat_of(run: dict[str, Any]) -> str:
    """Return the identity that repeats share, as text: experiment, limits, server, SGLang's version, changed waits."""
    # The experiment names the model; the server's path to it may be temporary.
    server = {key: value for key, value in (run.get("server") or {}).items() if key != "model"}
    version = run.get("versions", {}).get("sglang")
    waits = [run.get("time_scale"), run.get("await_aux", False)]
    return json.dumps([experiment(run), settings(run), server, version, waits], sort_keys=True)


def timing_refused(record: RunRecord) -> str | None:
    """Explain why a run's times cannot be compared; None where they can."""
    scale = record.run.get("time_scale", 1.0)
    if scale != 1.0:
        return (
            f"tools, users and arrivals took {scale:g} times as long as recorded (time_scale), so load and times are "
            "not those of the scenario; measure again with --time-scale 1"
        )
    if record.run.get("await_aux"):
        return "turns waited for aux threads (await_aux), as no agent does; measure again without it"
    if record.run.get("status", "complete") != "complete":
        return f"the run ended before its end ({record.run.get('ended_by')}), so its times are those of a part; measure again"
    return None


def warnings(runs: Sequence[Run]) -> list[str]:
    """List warnings about runs, in sentences that begin with the runs' names."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for text in _warnings(run.record):
            found.setdefault(text, []).append(run.name)
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]


def _warnings(record: RunRecord) -> list[str]:
    run = record.run
    found = []
    if run.get("status", "complete") != "complete":
        found.append(f"incomplete: the run ended before its end ({run.get('ended_by')})")
    found += [
        f"{key}: the scenario states {values['scenario']}, the server has {values['server']}"
        for key, values in run.get("unlike_the_scenario", {}).items()
    ]
    found += [f"the server does what is not modelled: {each}" for each in run.get("not_modelled", ())]
    if run.get("refused"):
        found.append(f"the server refused {len(run['refused'])} requests, the first: {run['refused'][0]}")
    if run.get("kind") == "real" and not record.engine.num_rows:
        found.append(
            "without a step log nothing is known of its KV usage, and computed and resident tokens are those of "
            "requests that were never retracted"
        )
    if (late := lateness_note(record)) is not None:
        found.append(late)
    failed = sum(outcome != COMPLETED for outcome in record.tasks["outcome"].to_pylist())
    if failed:
        found.append(f"{failed} of {record.tasks.num_rows} tasks failed, which shortens the run")
    return found


def unlike(real: Run, simulated: Run) -> list[str]:
    """List the limits that differ between the simulated and the real server, in sentences."""
    theirs, ours = settings(real.record.run), settings(simulated.record.run)
    return [
        f"{key}: the server has {theirs.get(key)}, the simulation {ours.get(key)}"
        for key in dict.fromkeys((*theirs, *ours))
        if theirs.get(key) != ours.get(key)
    ]
