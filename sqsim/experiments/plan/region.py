# SPDX-License-Identifier: Apache-2.0
"""A region: SideQuest's gain over none and over the best free rival, by load, K and other varied keys.

Every place of the grid is one concurrency under one set of other values (turns, traces with longer responses, recall);
there each setting of a plan (settings.py) runs under the same seed. A gain is main output throughput over the rival's,
less one: below 0 the aux threads cost more than the shorter contexts save.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqsim.base.workers import Progress, Workers
from sqsim.errors import InputError, RunError, SqsimError
from sqsim.experiments.grid import Axis, Values, overrides, points
from sqsim.experiments.plan.settings import KS, Setting, settings
from sqsim.experiments.points import Found, Points, write_json
from sqsim.record.evidence import each_once
from sqsim.scenario.labels import evicted_then_used_share
from sqsim.scenario.resolved import Resolved
from sqsim.scenario.scenario import Scenario, load_scenario

SCHEMA = "sqsim-region/2"
BASE = "none"
_SPEED = "output_tok_s"


def run_region(
    file: Path,
    concurrencies: Sequence[int],
    axes: Sequence[Axis],
    directory: Path,
    *,
    changes: Sequence[str] = (),
    ks: Sequence[int] = KS,
    overwrite: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run every setting at every place, write region.json, and return its content. It resumes as a sweep does.

    ScenarioError: a place is no scenario. RunError: `none` completed no task at any place.
    """
    base = load_scenario(file, changes)
    hybrid = Resolved.of(base).hybrid
    chosen = settings(ks, hybrid=hybrid, sized=base.engine.kv_capacity is None)
    places = [(each, values) for values in points(axes) for each in concurrencies]
    asked = [
        (place, setting, _scenario(file, changes, places[place], setting))
        for place in range(len(places))
        for setting in chosen
    ]
    store = Points(directory)
    store.make_room(overwrite)
    runnable = [each for _, _, each in asked if isinstance(each, Scenario)]
    results = iter(store.run(runnable, workers or Workers(), progress))
    found: dict[int, dict[str, Found | SqsimError]] = {place: {} for place in range(len(places))}
    for place, setting, scenario in asked:
        found[place][setting.name] = next(results) if isinstance(scenario, Scenario) else scenario
    content = {
        "schema": SCHEMA,
        "scenario": {"file": file.name, "changes": list(changes), "resolved": base.resolved()},
        "axes": [list(axis.keys) for axis in axes],
        "ks": list(ks),
        "evidence": each_once(
            each["evidence"]
            for settings_found in found.values()
            for each in settings_found.values()
            if not isinstance(each, SqsimError)
        ),
        "places": [_place(*places[place], found[place], chosen) for place in range(len(places))],
    }
    if all(each["base"] is None for each in content["places"]):  # type: ignore[index]  # a list of objects
        errors = [str(each) for each in found[0].values() if isinstance(each, SqsimError)]
        raise RunError(
            f"region: {BASE} completed nothing anywhere; {errors[0] if errors else 'no task completed'}"
        )
    content["crossings"] = crossings(content["places"])  # type: ignore[arg-type]  # a list of objects
    write_json(directory / "region.json", content)
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]  # as a reader of the file finds it


def _scenario(
    file: Path, changes: Sequence[str], place: tuple[int, Values], setting: Setting
) -> Scenario | InputError:
    concurrency, values = place
    try:
        load = {"load": {"concurrency": concurrency}}
        return load_scenario(file, [*changes, *overrides({**load, **setting.changes, **values})])
    except InputError as error:
        return error


def _place(
    concurrency: int, values: Values, found: dict[str, Found | SqsimError], chosen: Sequence[Setting]
) -> dict[str, Any]:
    """Collect the speeds of all settings at one place, and SideQuest's gains for each K."""
    speeds: dict[str, float | None] = {
        name: None if isinstance(each, SqsimError) else each["metrics"][_SPEED] for name, each in found.items()
    }
    free = {each.name: speed for each in chosen if each.free and (speed := speeds[each.name])}
    rival = max(free, key=lambda name: free[name], default=None)
    best = found[rival or BASE]
    base = speeds[BASE] or None
    entries = []
    for setting in chosen:
        speed, each = speeds[setting.name], found[setting.name]
        if not setting.is_sidequest or isinstance(each, SqsimError):
            continue
        entries.append(
            {
                "setting": setting.name,
                "k": setting.changes["policy"]["k"],
                "after_eviction": setting.changes["policy"]["after_eviction"],
                "against_none": speed / base - 1 if speed and base else None,
                "against_free": speed / free[rival] - 1 if speed and rival is not None else None,
                "aux_share": each["metrics"]["aux_output_tokens"] / (each["metrics"]["output_tokens"] or 1),
                "evicted_then_used": each["metrics"]["evicted_then_used"],
            }
        )
    return {
        "concurrency": concurrency,
        "values": values,
        "base": base,
        "best_free": rival,
        "best_free_harm": None if isinstance(best, SqsimError) else evicted_then_used_share(best["metrics"]),
        "speeds": speeds,
        "errors": {name: str(each) for name, each in found.items() if isinstance(each, SqsimError)},
        "sidequest": entries,
    }


def crossings(places: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Find the concurrency from which each SideQuest setting pays, under each set of other values and over each rival.

    `from` interpolates between the two concurrencies around the last change of sign; without a change, `pays` is always
    or never.
    """
    lines: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
    for place in places:
        for entry in place["sidequest"]:
            key = json.dumps(place["values"], sort_keys=True), entry["setting"]
            lines.setdefault(key, []).append((place["concurrency"], entry))
    found = []
    for (values, setting), line in lines.items():
        for rival in ("against_none", "against_free"):
            known = sorted((at, entry[rival]) for at, entry in line if entry[rival] is not None)
            if known:
                found.append(
                    {"values": json.loads(values), "setting": setting, "rival": rival, **_crossing(known)}
                )
    return found


def _crossing(known: Sequence[tuple[int, float]]) -> dict[str, Any]:
    if all(gain > 0 for _, gain in known):
        return {"pays": "always", "from": None}
    if known[-1][1] <= 0:
        return {"pays": "never" if all(gain <= 0 for _, gain in known) else "not at the most", "from": None}
    (below, behind), (above, ahead) = next(
        (one, other) for one, other in reversed(list(pairwise(known))) if one[1] <= 0 < other[1]
    )
    return {"pays": "from", "from": below + (above - below) * -behind / (ahead - behind)}
