"""A cost profile fitted to real runs: what a step costs on that server, and how well it predicts runs that it did not see.

Coefficients are non-negative and linear in what a step computes. The fit weighs a step by the inverse of its predicted
time, so that its total is right as well as its parts: the errors of the fit add up to zero seconds. Steps of one run are
correlated, so the covariance is a bootstrap over runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import nnls

from sqsim.draws import generator
from sqsim.errors import InputError
from sqsim.models.cost import window_pairs
from sqsim.models.geometry import Geometry, geometry
from sqsim.models.profile import (
    ClientTerm,
    CurveTerm,
    DecodeTerm,
    Fit,
    PrefillTerm,
    PrefixTerm,
    Profile,
    StepTerm,
)
from sqsim.record import read_record
from sqsim.recording import SCHEDULE
from sqsim.step_times import StepTime, StepTimes, served, step_times

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
"""Coefficient -> what it is a second of, and which run would determine it."""

_ROUNDS = 20  # of reweighting; it converges in a few
_OUTLIER = 8.0  # times the predicted step: something else had the machine
_DRAWS = 200
_COLLINEAR = 1e-4  # of a coefficient's column that the other columns do not explain


@dataclass(frozen=True, slots=True)
class RunScore:
    """How a run was predicted by a fit that did not see it. Errors are relative to what was measured."""

    run: str
    steps: int
    measured_s: float  # sum of its steps
    total_error: float  # signed, of the sum
    mean_abs_error: float  # of a step


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile and what is known of it."""

    profile: Profile
    coefficients: dict[str, float]
    standard_errors: dict[str, float]
    held_out: list[RunScore]
    outliers: int  # steps left out: more than `_OUTLIER` times what was predicted
    steps: int

    def to_json(self) -> dict[str, Any]:
        """Everything but the profile, which is a file of its own."""
        return {name: value for name, value in asdict(self).items() if name != "profile"}


def calibrate(sources: Sequence[Path], name: str) -> Calibration:
    """Fit a profile called `name` to real runs of one model on one server.

    A source is a record with its `schedule/`, or a file that benchmarks/gpu/serve.py wrote.

    InputError: a run is simulated, incomplete or of another model or server, or the runs do not determine a coefficient.
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
    parts = [_matrix(run.steps, shape) for run in runs]
    measured = [np.array([step.seconds for step in run.steps]) for run in runs]
    names = _names(shape)
    if all((part[:, names.index("prefill")] == part[:, names.index("prefill_rows")]).all() for part in parts):
        # One request a prefill: what it costs once and what it costs a row are the same.
        parts = [np.delete(part, names.index("prefill"), axis=1) for part in parts]
        names.remove("prefill")
    _refuse_undetermined(np.concatenate(parts), names)
    values, kept = _fit(np.concatenate(parts), np.concatenate(measured))
    covariance = _bootstrap(parts, measured)
    held = _held_out(runs, parts, measured)
    fit = Fit(
        rows=int(kept.sum()),
        mean_abs_error=_rounded(_error(np.concatenate(parts)[kept] @ values, np.concatenate(measured)[kept])),
        held_out_rows=sum(score.steps for score in held),
        held_out_mean_abs_error=_rounded(fmean(score.mean_abs_error for score in held)),
        held_out_max_abs_error=_rounded(max(abs(score.total_error) for score in held)),
        names=names,
        covariance=[[_rounded(x) for x in line] for line in covariance],
    )
    coefficients = {each: _rounded(value) for each, value in zip(names, values, strict=True)}
    return Calibration(
        profile=_profile(name, shape, gpu, first, coefficients, fit, runs),
        coefficients=coefficients,
        standard_errors={
            each: _rounded(error) for each, error in zip(names, np.sqrt(np.diag(covariance)), strict=True)
        },
        held_out=held,
        outliers=int((~kept).sum()),
        steps=len(kept),
    )


def profile_text(profile: Profile) -> str:
    """The profile as the YAML that `engine.profile` takes."""
    data = profile.model_dump(by_alias=True, mode="json", exclude_none=True)
    for name, term in data.items():
        if isinstance(term, dict):
            data[name] = {key: value for key, value in term.items() if value not in ({}, [])}
    head = "# Made by `sqsim calibrate`. Seconds and tokens; `dense` to `prefix_read`: a layer.\n"
    return head + yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)


def _source(path: Path) -> tuple[Mapping[str, Any], StepTimes]:
    """What ran, as run.json says it, and its steps."""
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
    """All runs are of one model on one server; its path is a matter of the day."""
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


def _names(shape: Geometry) -> list[str]:
    return [name for name in FEATURES if name != "decode_window" or shape.sliding_layers]


def _matrix(steps: Sequence[StepTime], shape: Geometry) -> Vector:
    """(steps, coefficients): how often each coefficient is charged in each step."""
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
        rows.append([float(row[name]) for name in _names(shape)])
    return np.array(rows, dtype=float).reshape(len(rows), len(_names(shape)))


def _refuse_undetermined(matrix: Vector, names: Sequence[str]) -> None:
    """A coefficient must be charged, and not only in a fixed proportion to others."""
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
    """Coefficients, and which steps they were fitted to.

    Weights of one over the prediction make the normal equations say that the errors add up to zero.
    """
    scale = np.where(matrix.max(axis=0) > 0, matrix.max(axis=0), 1.0)
    weights = 1.0 / np.sqrt(np.maximum(seconds, 1e-6))
    kept = np.ones(len(seconds), dtype=bool)
    values = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        found, _ = nnls((matrix[kept] / scale) * weights[kept, None], seconds[kept] * weights[kept])
        previous, values = values, found / scale
        predicted = np.maximum(matrix @ values, 1e-6)
        kept = seconds < _OUTLIER * predicted
        weights = 1.0 / np.sqrt(predicted)
        if np.allclose(previous, values, rtol=1e-9, atol=0.0):
            break
    return values, kept


def _bootstrap(parts: Sequence[Vector], measured: Sequence[Vector]) -> Vector:
    """Covariance of the coefficients over redrawn runs; of one run alone, over redrawn tenths of it."""
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


def _held_out(runs: Sequence[StepTimes], parts: Sequence[Vector], measured: Sequence[Vector]) -> list[RunScore]:
    """Each run predicted by the others; one run alone: its last third by the rest of it."""
    names = [str(run.directory.parent if run.directory.name == SCHEDULE else run.directory) for run in runs]
    if len(parts) == 1:
        cut = 2 * len(measured[0]) // 3
        names = [f"{names[0]} (first two thirds)", f"{names[0]} (last third)"]
        parts, measured = ([each[0][:cut], each[0][cut:]] for each in (parts, measured))
        return [_score(names[1], parts[1] @ _fit(parts[0], measured[0])[0], measured[1])]
    scores = []
    for at, name in enumerate(names):
        others = [other for other in range(len(parts)) if other != at]
        values, _ = _fit(
            np.concatenate([parts[o] for o in others]), np.concatenate([measured[o] for o in others])
        )
        scores.append(_score(name, parts[at] @ values, measured[at]))
    return scores


def _score(run: str, predicted: Vector, measured: Vector) -> RunScore:
    total = float(measured.sum())
    return RunScore(
        run,
        len(measured),
        _rounded(total),
        _rounded(float(predicted.sum()) / total - 1),
        _rounded(_error(predicted, measured)),
    )


def _error(predicted: Vector, measured: Vector) -> float:
    return float(np.mean(np.abs(predicted / measured - 1)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _profile(
    name: str,
    shape: Geometry,
    gpu: str,
    run: Mapping[str, Any],
    found: Mapping[str, float],
    fit: Fit,
    runs: Sequence[StepTimes],
) -> Profile:
    server = run["server"]
    source = (
        f"{len(runs)} runs of SGLang {run['versions']['sglang']} on {server['device']}, {server['dtype']}, "
        f"attention {server['attention_backend']}; fitted to whole steps by `sqsim calibrate`"
    )
    works = [step.work for each in runs for step in each.steps]
    ranges = {
        "requests": _span(work.decode_requests for work in works if work.decode_requests),
        "context_tokens": _span(
            work.decode_context / work.decode_requests for work in works if work.decode_requests
        ),
    }
    prefill_ranges = {
        "requests": _span(len(work.prefill) for work in works if work.prefill),
        "new_tokens": _span(new for work in works for new, _ in work.prefill),
        "prefix_tokens": _span(before for work in works for _, before in work.prefill),
    }
    nothing = CurveTerm(
        evidence="measured", source="in the terms `step`, `decode_full` and `prefill_full`", points=[(0.0, 0.0)]
    )
    full = max(1, shape.full_layers)
    # Where a model has sliding layers, a prefill's own tokens are charged by pairs in every layer, all else by the full ones.
    sliding = shape.sliding_layers > 0
    said: dict[str, Any] = {"evidence": "measured", "source": source}
    pair_s = found["prefill_pairs"] / shape.layers
    return Profile(
        schema="sqsim-profile/1",
        name=name,
        model=shape.name,
        gpu=gpu,
        engine="sglang",
        version=str(run["versions"]["sglang"]),
        weights=shape.weights,
        kv_dtype=str(run["scenario"]["engine"]["kv_dtype"]).replace("auto", "bfloat16"),
        note="Fitted to the whole steps of real runs; host work, dense layers and sampling are in the terms `step`, "
        "`decode_full` and `prefill_full`.",
        step=StepTerm(**said, fixed_s=max(found["step"], 1e-9), per_layer_s=0.0, fit=fit),
        dense=nothing,
        moe=nothing if shape.experts else None,
        lm_head=nothing,
        decode_full=DecodeTerm(
            **said,
            ranges=ranges,
            points=[(0.0, 0.0), (1.0, found["decode_requests"] / full)],
            per_token_s=found["decode_context"] / full,
        ),
        decode_sliding=DecodeTerm(
            **said,
            ranges=ranges,
            points=[(0.0, 0.0)],
            per_token_s=found["decode_window"] / shape.sliding_layers,
        )
        if sliding
        else None,
        prefill_full=PrefillTerm(
            **said,
            ranges=prefill_ranges,
            fixed_s=found.get("prefill", 0.0) / full,
            per_request_s=found["prefill_rows"] / full,
            per_token_s=found["prefill_tokens"] / full,
            per_pair_s=pair_s,
        ),
        prefill_sliding=PrefillTerm(
            **said, ranges=prefill_ranges, fixed_s=0.0, per_request_s=0.0, per_token_s=0.0, per_pair_s=pair_s
        )
        if sliding
        else None,
        prefix_read=PrefixTerm(**said, ranges=prefill_ranges, per_token_s=found["prefix_tokens"] / full),
        client=_client(runs, source),
    )


def _span(values: Any) -> tuple[float, float]:
    found = list(values) or [0.0]
    return float(min(found)), float(max(found))


def _client(runs: Sequence[StepTimes], source: str) -> ClientTerm | None:
    """Means over all requests but the slowest and fastest tenth: a few waited for others that came at the same instant."""
    requests = [value for run in runs for value in run.request_s]
    responses = [value for run in runs for value in run.response_s]
    if not requests or not responses:
        return None
    return ClientTerm(
        evidence="measured",
        source=source,
        request_s=_rounded(max(0.0, _trimmed(requests))),
        response_s=_rounded(max(0.0, _trimmed(responses))),
    )


def _trimmed(values: Sequence[float]) -> float:
    tenth = len(values) // 10
    return fmean(sorted(values)[tenth : len(values) - tenth])
