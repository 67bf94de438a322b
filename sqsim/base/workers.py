"""Work side by side: on this machine's cores, or on the nodes of a Ray cluster.

Studies, sweeps and plans hand their runs to this one place. A run depends on its scenario alone, so the number of
workers, and where they stand, changes nothing but the time.
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

from sqsim.errors import InputError, RunError, SqsimError

Progress = Callable[[int, int], None]
"""Done, of how many."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_WATCH_S = 0.5


@dataclass(frozen=True, slots=True)
class Workers:
    """`jobs` at a time on this machine; with `cluster` on Ray, "local" or the address of a running cluster.

    On a cluster `jobs` is how many CPUs a local Ray gets; traces and output directories must lie on a disk that all
    nodes share.
    """

    jobs: int = 1
    cluster: str | None = None

    def each(
        self, work: Callable[[Item], Result], items: Sequence[Item], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result | SqsimError]]:
        """The place of each item and what its work gave, as they end; an error of ours is a result too.

        A broken assertion is a RunError: one run's bug must not take the others' results with it.
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
    except (pickle.PicklingError, BrokenProcessPool) as error:
        raise RunError(
            f"a run cannot be handed to another process: {error}; put a policy of your own into a module that can be "
            "imported, or run with --jobs 1"
        ) from error


def _on_ray(calls: list[Any], address: str, jobs: int) -> Iterator[Any]:
    """Ray's pool under joblib hands results back when all of a call are there: so they go in portions."""
    with _ray(address, jobs) as cpus, joblib.parallel_config(backend="ray"):
        parallel, portion = joblib.Parallel(n_jobs=cpus, batch_size=1), 4 * cpus
        for start in range(0, len(calls), portion):
            yield from parallel(calls[start : start + portion])


@contextmanager
def _ray(address: str, jobs: int) -> Iterator[int]:
    """A connection to a cluster, or a cluster of this machine's processes; how many CPUs it has."""
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
    """In a worker: end as soon as the process `home` has, even if that was killed. In `home` itself: nothing."""

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
