# SPDX-License-Identifier: Apache-2.0
"""Parallel work on this machine's cores, or on the nodes of a Ray cluster.

Studies, sweeps and plans hand their runs to this module. A run depends on its scenario alone, so the number and the
place of the workers change only the time that the work takes.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from sqsim.errors import InputError, RunError, SqsimError

Progress = Callable[[int, int], None]
"""A callback: number of items done, number of all items."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_WATCH_S = 0.5


@dataclass(frozen=True, slots=True)
class Workers:
    """Settings of parallel work: `jobs` processes on this machine, or a Ray cluster.

    `cluster` is "local" or the address of a running cluster; a local one gets `jobs` CPUs. With a cluster, traces and
    output directories must lie on a disk that all nodes share.
    """

    jobs: int = 1
    cluster: str | None = None

    def each(
        self, work: Callable[[Item], Result], items: Sequence[Item], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result | SqsimError]]:
        """Yield (index of an item, its result) as the items end; an SqsimError is a result too.

        A broken assertion becomes a RunError, so that a bug in one run does not lose the results of the others.
        """
        home = os.getpid() if self.cluster is None else None
        calls = [joblib.delayed(_attempt)(work, place, item, home) for place, item in enumerate(items)]
        results = _here(calls, self.jobs) if self.cluster is None else _on_ray(calls, self.cluster, self.jobs)
        for done, result in enumerate(results, 1):
            yield result
            if progress is not None:
                progress(done, len(items))


def _here(calls: list[Any], jobs: int) -> Iterator[Any]:
    if not calls:
        return
    try:
        yield from joblib.Parallel(n_jobs=min(jobs, len(calls)), return_as="generator_unordered")(calls)
    except TerminatedWorkerError as error:
        raise RunError(
            "a worker process ended in the middle of a run: a policy called os._exit, or the system killed the process "
            "(out of memory?); run with --jobs 1 to see which run it is"
        ) from error
    except (pickle.PicklingError, BrokenProcessPool) as error:
        raise RunError(
            f"a run cannot be handed to another process: {error}; put a policy of your own into a module that can be "
            "imported, or run with --jobs 1"
        ) from error


def _on_ray(calls: list[Any], address: str, jobs: int) -> Iterator[Any]:
    """Run the calls in portions, as Ray's joblib pool returns results only once all of a portion are done."""
    with _ray(address, jobs) as cpus, joblib.parallel_config(backend="ray"):
        parallel, portion = joblib.Parallel(n_jobs=cpus, batch_size=1), 4 * cpus
        for start in range(0, len(calls), portion):
            yield from parallel(calls[start : start + portion])


@contextmanager
def _ray(address: str, jobs: int) -> Iterator[int]:
    """Connect to a cluster, or start one on this machine; yields the number of its CPUs."""
    try:
        import ray  # noqa: PLC0415 - an optional extra
        from ray.util.joblib import register_ray  # noqa: PLC0415
    except ImportError as error:
        raise InputError("--cluster needs Ray, which is not installed: pip install 'sqsim[cluster]'") from error
    register_ray()
    local = address == "local"
    try:
        ray.init(
            address=address, num_cpus=jobs if local else None, include_dashboard=False, log_to_driver=False
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"--cluster {address}: no Ray answers there: {error}; start one, or use --cluster local"
        ) from error
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


@cache
def end_with(home: int) -> None:
    """End this worker process once the process `home` has ended, even if it was killed; in `home` do nothing."""

    def watch() -> None:
        while os.getppid() == home:
            time.sleep(_WATCH_S)
        os._exit(1)

    if os.getpid() != home:
        threading.Thread(target=watch, daemon=True).start()


def _attempt(
    work: Callable[[Item], Result], place: int, item: Item, home: int | None
) -> tuple[int, Result | SqsimError]:
    if home is not None:
        end_with(home)
    try:
        return place, work(item)
    except SqsimError as error:
        return place, error
    except AssertionError as error:
        return place, RunError(f"a bug of sqsim: {error}")
    except SystemExit as error:
        return place, RunError(
            f"the run asked the process to end (SystemExit: {error}); repair what calls sys.exit"
        )
