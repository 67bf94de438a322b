# SPDX-License-Identifier: Apache-2.0
"""A fit of step costs to measured steps: coefficients, their covariance, and their errors on runs that were left out.

A step's time is linear in what it computes, with non-negative coefficients. The fit weighs a step by the inverse of its
predicted time, so that the total is right as well as the parts: the errors of the fit add up to zero seconds. Steps of one
run are correlated, so the covariance is a bootstrap over runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sqsim.base.random_streams import generator
from sqsim.errors import InputError
from sqsim.fidelity.step_times import StepTime
from sqsim.models.cost.geometry import Geometry
from sqsim.models.cost.step_cost import window_pairs

Vector = NDArray[np.float64]

FEATURES = {
    "step": "every step",
    "decode_requests": "decoding requests: run with load.concurrency above 1, and of several sizes",
    "decode_context": "tokens of context that decoding requests read: run tasks of different lengths",
    "decode_window": "the same, within the sliding window: run tasks shorter and longer than the window",
    "prefill": "steps with a prefill: run at least one task",
    "prefill_rows": "requests in one prefill: run with load.concurrency above 1",
    "prefill_tokens": "new tokens: run tasks with short and with long responses",
    "prefill_pairs": "pairs of a new token and one that it attends to: run tasks with short and with long responses",
    "prefix_tokens": "tokens with KV before a prefill: run tasks of several turns, with the radix cache",
}
"""Coefficient -> the quantity that it charges for, and which run would identify it."""

OUTLIER = 8.0
"""A step over this many times its prediction is left out: another process used the machine."""

_ROUNDS = 20  # of reweighting; it converges in a few
_DRAWS = 200
_COLLINEAR = 1e-4  # least squared share of a coefficient's column that the other columns do not explain


@dataclass(frozen=True, slots=True)
class Run:
    """The measured steps of one run."""

    name: str
    steps: Sequence[StepTime]


@dataclass(frozen=True, slots=True)
class RunScore:
    """A run's prediction by a fit that did not see it. Errors are relative to the measured times."""

    run: str
    steps: int
    measured_s: float  # sum of its steps
    total_error: float  # signed, of the sum
    mean_abs_error: float  # of a step


@dataclass(frozen=True, slots=True)
class Residuals:
    """Every step of a run, measured and predicted by the fit to all runs; `prefill`: whether the step holds one."""

    run: str
    measured_s: Vector
    predicted_s: Vector
    prefill: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepFit:
    """Fitted coefficients in the order of `names`, in seconds, with their covariance.

    `spread` is the relative standard deviation of a whole run about its prediction that `covariance` does not explain.
    """

    names: list[str]
    values: Vector
    covariance: Vector
    spread: float
    kept: int  # steps fitted to
    outliers: int  # steps left out
    mean_abs_error: float  # of a kept step
    held_out: list[RunScore]


def fit_steps(runs: Sequence[Run], shape: Geometry) -> StepFit:
    """Fit a model's coefficients to runs. InputError names the coefficients that these runs cannot identify."""
    names = [name for name in FEATURES if name != "decode_window" or shape.sliding_layers]
    parts = [_matrix(run.steps, shape, names) for run in runs]
    measured = [np.array([step.seconds for step in run.steps]) for run in runs]
    at_once, rows = names.index("prefill"), names.index("prefill_rows")
    if all((part[:, at_once] == part[:, rows]).all() for part in parts):
        # One request in every prefill: the cost of a prefill cannot be told from the cost of a row.
        parts = [np.delete(part, at_once, axis=1) for part in parts]
        names.remove("prefill")
    matrix, seconds = np.concatenate(parts), np.concatenate(measured)
    _refuse_undetermined(matrix, names)
    values, kept = _fit(matrix, seconds)
    covariance = _bootstrap(parts, measured)
    held, explained = _held_out([run.name for run in runs], parts, measured, covariance)
    unexplained = fmean(each.total_error**2 for each in held) - explained
    return StepFit(
        names,
        values,
        covariance,
        sqrt(max(0.0, unexplained)),
        int(kept.sum()),
        int((~kept).sum()),
        _error(matrix[kept] @ values, seconds[kept]),
        held,
    )


def predicted_s(fit: StepFit, steps: Sequence[StepTime], shape: Geometry) -> Vector:
    """Predict the seconds of each step."""
    predicted: Vector = _matrix(steps, shape, fit.names) @ fit.values
    return predicted


def residuals(fit: StepFit, runs: Sequence[Run], shape: Geometry) -> list[Residuals]:
    """Pair every step of every run with its prediction."""
    return [
        Residuals(
            run.name,
            np.array([step.seconds for step in run.steps]),
            np.maximum(predicted_s(fit, run.steps, shape), 1e-9),
            np.array([bool(step.work.prefill) for step in run.steps]),
        )
        for run in runs
    ]


def _matrix(steps: Sequence[StepTime], shape: Geometry, names: Sequence[str]) -> Vector:
    """Build the matrix (steps, coefficients) of how often each step charges each coefficient."""
    rows = []
    for _, _, work in steps:
        new = sum(tokens for tokens, _ in work.prefill)
        full = sum(tokens * before + tokens * (tokens + 1) // 2 for tokens, before in work.prefill)
        pairs = shape.full_layers * full
        if shape.window:
            pairs += shape.sliding_layers * sum(window_pairs(*row, shape.window) for row in work.prefill)
        row = {
            "step": 1,
            "decode_requests": work.decode_requests,
            "decode_context": work.decode_context,
            "decode_window": work.decode_window,
            "prefill": bool(work.prefill),
            "prefill_rows": len(work.prefill),
            "prefill_tokens": new,
            "prefill_pairs": pairs / shape.layers,
            "prefix_tokens": sum(before for _, before in work.prefill),
        }
        rows.append([float(row[name]) for name in names])
    return np.array(rows, dtype=float).reshape(len(rows), len(names))


def _refuse_undetermined(matrix: Vector, names: Sequence[str]) -> None:
    """Refuse runs in which a coefficient is never charged, or only in a fixed proportion to others."""
    problems = []
    scale = np.linalg.norm(matrix, axis=0)
    for at, name in enumerate(names):
        others = np.delete(matrix, at, axis=1) / np.where(np.delete(scale, at), np.delete(scale, at), 1.0)
        column = matrix[:, at] / (scale[at] or 1.0)
        rest = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        if not scale[at] or float(rest @ rest) < _COLLINEAR:
            problems.append(f"{name} ({FEATURES[name]})")
    if problems:
        raise InputError(
            "these runs do not determine "
            + "; ".join(problems)
            + ". Add such a run, or use a profile that states the rest"
        )


def _fit(matrix: Vector, seconds: Vector) -> tuple[Vector, NDArray[np.bool_]]:
    """Fit the coefficients; return them and the mask of the steps that were kept.

    With weights of one over the prediction, the normal equations make the errors add up to zero.
    """
    scale = np.where(matrix.max(axis=0) > 0, matrix.max(axis=0), 1.0)
    weights = 1.0 / np.sqrt(np.maximum(seconds, 1e-6))
    kept = np.ones(len(seconds), dtype=bool)
    values = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        found, _ = nnls((matrix[kept] / scale) * weights[kept, None], seconds[kept] * weights[kept])
        previous, values = values, found / scale
        predicted = np.maximum(matrix @ values, 1e-6)
        kept = seconds < OUTLIER * predicted
        weights = 1.0 / np.sqrt(predicted)
        if np.allclose(previous, values, rtol=1e-9, atol=0.0):
            break
    return values, kept


def _bootstrap(parts: Sequence[Vector], measured: Sequence[Vector]) -> Vector:
    """Estimate the covariance of the coefficients by redrawing runs; with one run, by redrawing tenths of it."""
    if len(parts) == 1:
        parts, measured = (np.array_split(each[0], min(10, len(each[0]))) for each in (parts, measured))
    draw = generator(0, "calibrate.bootstrap")
    found = []
    for _ in range(_DRAWS):
        chosen = draw.integers(0, len(parts), len(parts))
        values, _ = _fit(
            np.concatenate([parts[at] for at in chosen]), np.concatenate([measured[at] for at in chosen])
        )
        found.append(values)
    return np.atleast_2d(np.cov(np.array(found), rowvar=False))


def _held_out(
    names: Sequence[str], parts: Sequence[Vector], measured: Sequence[Vector], covariance: Vector
) -> tuple[list[RunScore], float]:
    """Predict each run by a fit to the others; with one run, its last third by the rest.

    Also return the mean square of the totals' relative errors that the covariance explains.
    """
    if len(parts) == 1:
        cut = 2 * len(measured[0]) // 3
        names = [f"{names[0]} (first two thirds)", f"{names[0]} (last third)"]
        parts, measured = ([each[0][:cut], each[0][cut:]] for each in (parts, measured))
        judged = [1]
    else:
        judged = list(range(len(parts)))
    scores, explained = [], []
    for at in judged:
        others = [other for other in range(len(parts)) if other != at]
        values, _ = _fit(
            np.concatenate([parts[o] for o in others]), np.concatenate([measured[o] for o in others])
        )
        scores.append(_score(names[at], parts[at] @ values, measured[at]))
        charged = parts[at].sum(axis=0) / measured[at].sum()
        explained.append(float(charged @ covariance @ charged))
    return scores, fmean(explained)


def _score(run: str, predicted: Vector, measured: Vector) -> RunScore:
    total = float(measured.sum())
    return RunScore(run, len(measured), total, float(predicted.sum()) / total - 1, _error(predicted, measured))


def _error(predicted: Vector, measured: Vector) -> float:
    return float(np.mean(np.abs(predicted / measured - 1)))
