# SPDX-License-Identifier: Apache-2.0
"""Step times of a real server, with the work of each step, from a recorded schedule.

A step lasts one iteration of the scheduler's loop: from the start of its forward pass to the start of the next one, or,
where none follows, until its result is processed. So it includes host work, and the times of a run without idle gaps add
up to the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqsim.errors import InputError
from sqsim.fidelity.recording import Entry, Recording, parsed, read_recording
from sqsim.models.cost.step_cost import StepWork

SERVED = "sqreal-serve/1"
_WINDOW = 128  # tokens that a sliding layer of gpt-oss sees


class StepTime(NamedTuple):
    """One step: its start in seconds since the first submission, its seconds, and its work."""

    t0_s: float
    seconds: float
    work: StepWork


@dataclass(frozen=True, slots=True)
class StepTimes:
    """All steps of a run, and the delays between client and scheduler in both directions.

    `request_s`: from a client's submission until the scheduler could queue it, one value a request, less the half step
    that an arrival waits on average for the next round. `response_s`: from the last result until the client had the
    answer. Both can be slightly negative where a wait was shorter than expected.
    """

    directory: Path
    steps: tuple[StepTime, ...]
    request_s: tuple[float, ...]
    response_s: tuple[float, ...]


def step_times(directory: Path, window: int | None) -> StepTimes:
    """Read a recording's step times. `window`: tokens that a sliding layer sees, the current one included.

    InputError: the recording is malformed.
    """
    recording = read_recording(directory)
    steps: list[StepTime] = []
    open_: tuple[float, int, StepWork] | None = None
    processed: dict[int, float] = {}
    arrivals: list[tuple[str, float, bool]] = []
    finished: dict[str, float] = {}
    broken = idle = True

    def close(end_s: float | None) -> None:
        nonlocal open_
        if open_ is not None and end_s is not None and end_s > open_[0]:
            steps.append(StepTime(open_[0], end_s - open_[0], open_[2]))
        open_ = None

    for event in recording.events():
        kind = event.get("ev", str)
        if kind == "step":
            t0_s = event.get("t0", float)
            close(t0_s if not broken else processed.get(open_[1]) if open_ is not None else None)
            open_ = (t0_s, event.get("step", int), _work(event, window))
            broken = idle = False
        elif kind == "result":
            processed[event.get("step", int)] = end_s = event.get("t1", float)
            finished |= dict.fromkeys(map(str, event.get("fin", list)), end_s)
        elif kind in {"nobatch", "idle"}:
            broken = True
            idle = idle or kind == "idle"
        elif kind == "arrive":
            arrivals.append((event.get("rid", str), event.get("t", float), idle))
    close(processed.get(open_[1]) if open_ is not None else None)
    return StepTimes(
        directory, tuple(steps), _requests(recording, arrivals, steps), _responses(recording, finished)
    )


def served(path: Path) -> tuple[dict[str, Any], StepTimes]:
    """Read a file of `benchmarks/gpu/serve.py`: its conditions in the form of a record's run.json, and its steps.

    A prefill's seconds include the delay over HTTP. The file does not state window tokens; every context exceeds the window.
    """
    lines = [(f"{path}:{number}", text) for number, text in enumerate(_lines(path), 1) if text.strip()]
    rows = [parsed(text, place) for place, text in lines]
    if not rows or rows[0].data.get("schema") != SERVED:
        raise InputError(
            f"{path}: its first line is no {SERVED}; give a file that benchmarks/gpu/serve.py wrote"
        )
    head, steps = rows[0], []
    for row in rows[1:]:
        kind = row.get("kind", str)
        if kind == "decode":
            requests, context = row.size("requests"), row.size("context_tokens")
            work = StepWork((), requests, requests * context, requests * min(context, _WINDOW))
            steps.append(StepTime(0.0, row.get("step_s", float), work))
        elif kind == "prefill":
            work = StepWork([(row.size("new_tokens"), row.get("prefix_tokens", int))], 0, 0, 0)
            steps.append(StepTime(0.0, row.get("seconds", float), work))
    run = {
        "kind": "real",
        "status": "complete",
        "scenario": {
            "model": head.get("model", str),
            "engine": {"gpu": head.get("gpu", str), "kv_dtype": head.get("kv_dtype", str)},
        },
        "server": head.get("server", dict),
        "versions": head.get("versions", dict),
    }
    return run, StepTimes(path, tuple(steps), (), ())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}); give a file that benchmarks/gpu/serve.py wrote"
        ) from error


def _work(event: Entry, window: int | None) -> StepWork:
    """Convert a batch to the cost model's input. Rows: rid, extend, prefix, length, n_out, n_in, ..."""
    prefill: list[tuple[int, int]] = []
    requests = context = seen = 0
    extending = event.get("mode", str) != "decode"
    for _, extend, prefix, length, n_out, n_in, *_ in event.rows("reqs", 6):
        # In a mixed batch a decoding row extends by its last output token.
        if extending and not (extend == 1 and prefix >= n_in and n_out > 0):
            prefill.append((extend, prefix))
        else:
            requests += 1
            context += length
            seen += min(length, window) if window else 0
    return StepWork(prefill, requests, context, seen)


def _requests(
    recording: Recording, arrivals: list[tuple[str, float, bool]], steps: list[StepTime]
) -> tuple[float, ...]:
    """Compute the request delays. A round sees arrivals before it: at once if the server is idle, else half a step later.

    The half step is a mean over arrivals, which fall into long steps more often than into short ones.
    """
    total = sum(step.seconds for step in steps)
    half = sum(step.seconds**2 for step in steps) / (2 * total) if steps else 0.0
    return tuple(
        at_s - response.get("t_submit", float) - (0.0 if idle else half)
        for rid, at_s, idle in arrivals
        if (response := recording.responses.get(rid)) is not None and "t_submit" in response.data
    )


def _responses(recording: Recording, finished: dict[str, float]) -> tuple[float, ...]:
    return tuple(
        response.get("t_done", float) - finished[rid]
        for rid, response in recording.responses.items()
        if rid in finished and "t_done" in response.data
    )
