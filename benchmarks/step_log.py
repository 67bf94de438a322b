# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of the step log: a real server times its hooks and its steps.

    .venv/bin/python benchmarks/step_log.py            # a minute on two cores; needs `make real-cpu`
    .venv/bin/python benchmarks/step_log.py --rows 1 256

Printed per number of rows (requests decoding at once): microseconds of a decode step, of them in the hooks, the ratio of a
step with the log to one without it, and the bytes that a step writes. Both times are taken in the same process in the same
moment, so that what else the machine does cancels in the ratio. The model is tiny: a step here is the scheduler's own work
and little else, so the ratio is an upper bound; a real step of 10-30 ms pays the microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import runpy
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx

from sqreal.server.options import ServerOptions
from sqreal.server.server import start
from sqreal.setup.tiny_models import write_tiny_model

COSTS = "STEP_LOG_COSTS"  # environment of the server: the file for what each step cost
STEPS, STOP, PROMPT = 300, 2, 16


# In the server.


def take_times() -> None:
    """Make the step log time itself. Per batch a line: rows, microseconds since the last one, in hooks, bytes written."""
    from sqreal.plugin.event_log import EventLog  # noqa: PLC0415 - in the server only

    spent, last, costs = 0.0, perf_counter(), None
    plain = EventLog.hook

    def timed(self: EventLog, method: str, parameters: str, around: Any) -> Any:
        hook = plain(self, method, parameters, around)
        launches = method.endswith(".run_batch")

        def timed_hook(original: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal spent, last, costs
            inside = 0.0

            def inner(*args: Any, **kwargs: Any) -> Any:
                nonlocal inside
                began = perf_counter()
                try:
                    return original(*args, **kwargs)
                finally:
                    inside += perf_counter() - began

            began = perf_counter()
            result = hook.around(inner, *args, **kwargs)
            now = perf_counter()
            spent += now - began - inside
            if launches:
                if costs is None:
                    costs = Path(os.environ[COSTS]).open("w", buffering=1)  # noqa: SIM115 - to the process's end
                rows = len(args[1].reqs) if args[1].forward_mode.is_decode() else 0
                assert self._file is not None, "a hook runs after the log is open"
                costs.write(f"{rows} {(now - last) * 1e6:.1f} {spent * 1e6:.1f} {self._file.buffer.tell()}\n")
                spent, last = 0.0, perf_counter()
            return result

        return hook._replace(around=timed_hook)

    EventLog.hook = timed  # type: ignore[method-assign]  # the point: every hook of this server is timed


# The client.


async def work(url: str, rows: int) -> None:
    """Send `rows` requests at once, each with its own prompt and STEPS forced tokens."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:

        async def one(row: int) -> None:
            forced = [3 + (row + step) % 500 for step in range(STEPS - 1)] + [STOP]
            sampling = {
                "max_new_tokens": STEPS + 1,
                "stop_token_ids": [STOP],
                "custom_params": {"sqreal_force": forced, "sqreal_n_in": PROMPT},
            }
            prompt = [3 + (row * 7 + place) % 500 for place in range(PROMPT)]
            answer = await http.post("/generate", json={"input_ids": prompt, "sampling_params": sampling})
            answer.raise_for_status()
            assert answer.json()["output_ids"] == forced

        await asyncio.gather(*(one(row) for row in range(rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        costs = Path(place) / "costs"
        os.environ[COSTS] = str(costs)
        options = ServerOptions(
            write_tiny_model("tiny-llama", Path(place) / "tiny-llama"),
            load_format="dummy",
            dtype="float32",
            kv_capacity=100_000,
            max_running=max(arguments.rows),
            context_length=2048,
        )
        itself = (sys.executable, __file__)
        with start(options, force_tokens=True, step_log=Path(place) / "steps.jsonl", launcher=itself) as server:
            for rows in arguments.rows:
                asyncio.run(work(server.url, rows))
        taken = [tuple(map(float, line.split())) for line in costs.read_text().splitlines()]
    print(f"{'rows':>5} {'step us':>9} {'hooks us':>9} {'ratio':>7} {'bytes':>7}")
    for rows in arguments.rows:
        full = [
            (step, spent, size - before)
            for (_, _, _, before), (count, step, spent, size) in pairwise(taken)
            if count == rows
        ]
        step, spent, size = (median(column) for column in zip(*full, strict=True))
        print(f"{rows:>5} {step:>9.0f} {spent:>9.0f} {step / (step - spent):>7.3f} {size:>7.0f}")


if os.environ.get(COSTS) and __name__ in {"__main__", "__mp_main__"}:
    take_times()
    if __name__ == "__main__":
        # `__main__` stays this file, so that the scheduler's process begins with it too.
        runpy.run_module("sglang.launch_server", run_name="__main__")
elif __name__ == "__main__":
    main()
