# SPDX-License-Identifier: Apache-2.0
"""Calibration: fit a cost profile to real runs, and score it on runs that the fit did not see.

`step_fit.py` fits the coefficients, `fitted_profile.py` writes the profile; here the records are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sqsim.errors import InputError
from sqsim.fidelity.fitted_profile import fitted_profile, rounded
from sqsim.fidelity.recording import SCHEDULE
from sqsim.fidelity.step_fit import Residuals, Run, RunScore, fit_steps, residuals
from sqsim.fidelity.step_times import StepTimes, served, step_times
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.profile import (
    Profile,
)
from sqsim.record.files import read_record


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile, with its errors on runs that the fit did not see."""

    profile: Profile
    coefficients: dict[str, float]
    standard_errors: dict[str, float]
    held_out: list[RunScore]
    spread: float  # relative sd of a whole run about its prediction, beyond the standard errors
    outliers: int  # steps left out: over `step_fit.OUTLIER` times their prediction
    steps: int
    residuals: list[Residuals]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON, without the profile, which is a separate file, and without the steps."""
        lean = replace(self, residuals=[])
        return {name: value for name, value in asdict(lean).items() if name not in {"profile", "residuals"}}


def calibrate(sources: Sequence[Path], name: str) -> Calibration:
    """Fit a profile called `name` to real runs of one model on one server.

    A source is a record with its `schedule/`, or a file that benchmarks/gpu/serve.py wrote.

    InputError: a run is simulated, incomplete or of another model or server, or the runs cannot identify a coefficient.
    """
    if not sources:
        raise InputError("no record given; calibrate takes directories that `sqreal run` wrote")
    found = [_source(path) for path in sources]
    first = found[0][0]
    _refuse_others([run for run, _ in found], sources)
    shape, gpu = geometry(str(first["scenario"]["model"])), str(first["scenario"]["engine"]["gpu"])
    runs = [times for _, times in found]
    if empty := next((path for path, times in zip(sources, runs, strict=True) if not times.steps), None):
        raise InputError(f"{empty}: holds no step; run it again")
    named = [Run(_called(times.directory), times.steps) for times in runs]
    fitted = fit_steps(named, shape)
    errors = np.sqrt(np.diag(fitted.covariance))
    return Calibration(
        profile=fitted_profile(name, shape, gpu, first, fitted, runs),
        coefficients={each: rounded(value) for each, value in zip(fitted.names, fitted.values, strict=True)},
        standard_errors={each: rounded(error) for each, error in zip(fitted.names, errors, strict=True)},
        held_out=[
            replace(
                score,
                measured_s=rounded(score.measured_s),
                total_error=rounded(score.total_error),
                mean_abs_error=rounded(score.mean_abs_error),
            )
            for score in fitted.held_out
        ],
        spread=rounded(fitted.spread),
        outliers=fitted.outliers,
        steps=fitted.kept + fitted.outliers,
        residuals=residuals(fitted, named, shape),
    )


def _called(directory: Path) -> str:
    return str(directory.parent if directory.name == SCHEDULE else directory)


def _source(path: Path) -> tuple[Mapping[str, Any], StepTimes]:
    """Read a run's run.json and its steps."""
    if path.is_file():
        return served(path)
    run = read_record(path, allow_incomplete=True).run
    if run.get("kind") != "real":
        raise InputError(f"{path}: a {run.get('kind')} run; calibrate takes runs of `sqreal run`")
    if run.get("status") != "complete":
        raise InputError(f"{path}: an incomplete run; run it again")
    if not (path / SCHEDULE).is_dir():
        raise InputError(
            f"{path}: has no {SCHEDULE}/; run it with a server that `sqreal run` starts, or with --step-log"
        )
    return run, step_times(path / SCHEDULE, geometry(str(run["scenario"]["model"])).window)


def _refuse_others(runs: Sequence[Mapping[str, Any]], sources: Sequence[Path]) -> None:
    """Refuse runs of different models or servers; the model's path may differ."""
    for run, path in zip(runs, sources, strict=True):
        for keys in (("scenario", "model"), ("scenario", "engine", "gpu"), ("server",), ("versions", "sglang")):
            ours, theirs = (_at(each, keys) for each in (runs[0], run))
            if isinstance(ours, Mapping):
                ours, theirs = ({k: v for k, v in each.items() if k != "model"} for each in (ours, theirs))
            if ours != theirs:
                raise InputError(
                    f"{path}: {'.'.join(keys)} is {theirs!r}, not {ours!r} as in {sources[0]}; "
                    "calibrate takes runs of one model on one server"
                )


def _at(run: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = run
    for key in path:
        value = value[key]
    return value
