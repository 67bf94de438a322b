"""A cost profile fitted to real runs: what a step costs on that server, and how well it predicts runs that it did not see.

The fit itself is step_fit.py's; here records are read and the profile is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from sqsim.errors import InputError
from sqsim.fidelity.recording import SCHEDULE
from sqsim.fidelity.step_fit import Residuals, Run, RunScore, StepFit, fit_steps, residuals
from sqsim.fidelity.step_times import StepTimes, served, step_times
from sqsim.models.cost.geometry import Geometry, geometry
from sqsim.models.cost.profile import (
    ClientTerm,
    CurveTerm,
    DecodeTerm,
    Fit,
    PrefillTerm,
    PrefixTerm,
    Profile,
    StepTerm,
)
from sqsim.record.files import read_record


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile and what is known of it."""

    profile: Profile
    coefficients: dict[str, float]
    standard_errors: dict[str, float]
    held_out: list[RunScore]
    spread: float  # relative sd of a whole run about its prediction, beyond the standard errors
    outliers: int  # steps left out: more than `step_fit.OUTLIER` times what was predicted
    steps: int
    residuals: list[Residuals]

    def to_json(self) -> dict[str, Any]:
        """Everything but the profile, which is a file of its own, and the steps."""
        lean = replace(self, residuals=[])
        return {name: value for name, value in asdict(lean).items() if name not in {"profile", "residuals"}}


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
    named = [Run(_called(times.directory), times.steps) for times in runs]
    fitted = fit_steps(named, shape)
    errors = np.sqrt(np.diag(fitted.covariance))
    return Calibration(
        profile=_profile(name, shape, gpu, first, fitted, runs),
        coefficients={each: _rounded(value) for each, value in zip(fitted.names, fitted.values, strict=True)},
        standard_errors={each: _rounded(error) for each, error in zip(fitted.names, errors, strict=True)},
        held_out=[
            replace(
                score,
                measured_s=_rounded(score.measured_s),
                total_error=_rounded(score.total_error),
                mean_abs_error=_rounded(score.mean_abs_error),
            )
            for score in fitted.held_out
        ],
        spread=_rounded(fitted.spread),
        outliers=fitted.outliers,
        steps=fitted.kept + fitted.outliers,
        residuals=residuals(fitted, named, shape),
    )


def _called(directory: Path) -> str:
    return str(directory.parent if directory.name == SCHEDULE else directory)


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


def _numbers(shape: Geometry) -> dict[str, tuple[str, float]]:
    """Number of a profile, by its path -> the coefficient that it is a share of, and that share.

    Where a model has sliding layers, a prefill's own tokens are charged by pairs in every layer, all else by the full ones.
    """
    full = 1.0 / max(1, shape.full_layers)
    found = {
        "step.fixed_s": ("step", 1.0),
        "decode_full.points.1": ("decode_requests", full),
        "decode_full.per_token_s": ("decode_context", full),
        "prefill_full.fixed_s": ("prefill", full),
        "prefill_full.per_request_s": ("prefill_rows", full),
        "prefill_full.per_token_s": ("prefill_tokens", full),
        "prefill_full.per_pair_s": ("prefill_pairs", 1.0 / shape.layers),
        "prefix_read.per_token_s": ("prefix_tokens", full),
    }
    if shape.sliding_layers:
        found["decode_sliding.per_token_s"] = ("decode_window", 1.0 / shape.sliding_layers)
        found["prefill_sliding.per_pair_s"] = ("prefill_pairs", 1.0 / shape.layers)
    return found


def _fit(fitted: StepFit, numbers: Mapping[str, tuple[str, float]]) -> Fit:
    """What is known of the fit, with the covariance of the profile's numbers."""
    shares = np.array(
        [
            [share if name == coefficient else 0.0 for name in fitted.names]
            for coefficient, share in numbers.values()
        ]
    )
    covariance = shares @ fitted.covariance @ shares.T
    held = fitted.held_out
    return Fit(
        rows=fitted.kept,
        mean_abs_error=_rounded(fitted.mean_abs_error),
        held_out_rows=sum(score.steps for score in held),
        held_out_mean_abs_error=_rounded(fmean(score.mean_abs_error for score in held)),
        held_out_max_abs_error=_rounded(max(abs(score.total_error) for score in held)),
        names=list(numbers),
        covariance=[[_rounded(x) for x in line] for line in covariance],
    )


def _profile(
    name: str,
    shape: Geometry,
    gpu: str,
    run: Mapping[str, Any],
    fitted: StepFit,
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
    coefficients = dict(zip(fitted.names, map(float, fitted.values), strict=True))
    numbers = {
        path: where for path, where in _numbers(shape).items() if where[0] in coefficients
    }  # one request a prefill: what it costs once is in what it costs a row

    def number(path: str) -> float:
        coefficient, share = numbers.get(path, ("", 0.0))
        return _rounded(coefficients.get(coefficient, 0.0) * share)

    said: dict[str, Any] = {"evidence": "measured", "source": source}
    sliding = shape.sliding_layers > 0
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
        spread=_rounded(fitted.spread),
        step=StepTerm(
            **said, fixed_s=max(number("step.fixed_s"), 1e-9), per_layer_s=0.0, fit=_fit(fitted, numbers)
        ),
        dense=nothing,
        moe=nothing if shape.experts else None,
        lm_head=nothing,
        decode_full=DecodeTerm(
            **said,
            ranges=ranges,
            points=[(0.0, 0.0), (1.0, number("decode_full.points.1"))],
            per_token_s=number("decode_full.per_token_s"),
        ),
        decode_sliding=DecodeTerm(
            **said, ranges=ranges, points=[(0.0, 0.0)], per_token_s=number("decode_sliding.per_token_s")
        )
        if sliding
        else None,
        prefill_full=PrefillTerm(
            **said,
            ranges=prefill_ranges,
            fixed_s=number("prefill_full.fixed_s"),
            per_request_s=number("prefill_full.per_request_s"),
            per_token_s=number("prefill_full.per_token_s"),
            per_pair_s=number("prefill_full.per_pair_s"),
        ),
        prefill_sliding=PrefillTerm(
            **said,
            ranges=prefill_ranges,
            fixed_s=0.0,
            per_request_s=0.0,
            per_token_s=0.0,
            per_pair_s=number("prefill_sliding.per_pair_s"),
        )
        if sliding
        else None,
        prefix_read=PrefixTerm(**said, ranges=prefill_ranges, per_token_s=number("prefix_read.per_token_s")),
        client=_client(runs, source),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _span(values: Any) -> tuple[float, float]:
    found = list(values) or [0.0]
    return float(min(found)), float(max(found))


def _client(runs: Sequence[StepTimes], source: str) -> ClientTerm | None:
    """Means over all requests but the slowest and fastest tenth: a few waited for others that came at the same instant.

    Its spread is that of one run to the next.
    """
    requests = [value for run in runs for value in run.request_s]
    responses = [value for run in runs for value in run.response_s]
    if not requests or not responses:
        return None
    request_s, response_s = (max(0.0, _trimmed(values)) for values in (requests, responses))
    each = [
        _trimmed(run.request_s) + _trimmed(run.response_s) for run in runs if run.request_s and run.response_s
    ]
    both = request_s + response_s
    return ClientTerm(
        evidence="measured",
        source=source,
        spread=_rounded(min(2.0, stdev(each) / both)) if len(each) > 1 and both else None,
        request_s=_rounded(request_s),
        response_s=_rounded(response_s),
    )


def _trimmed(values: Sequence[float]) -> float:
    tenth = len(values) // 10
    return fmean(sorted(values)[tenth : len(values) - tenth])
