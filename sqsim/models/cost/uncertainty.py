# SPDX-License-Identifier: Apache-2.0
"""Samples of a cost profile from its stated uncertainty.

Three kinds of uncertainty, each sampled once a profile:
- the covariance of the fitted numbers that the profile ships (`Fit.names` are their paths);
- a factor on a whole term: its `spread` is the fit's error on rows that it never saw, or, where nothing was measured, a
  spread declared by evidence (`DECLARED`);
- a factor on all step times, for the remaining error of a whole run (`Profile.spread`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqsim.base.random_streams import generator
from sqsim.models.cost.profile import Evidence, Fit, Profile, Term

DECLARED: dict[Evidence, float] = {"measured": 0.0, "published": 0.1, "derived": 0.2, "assumed": 0.5}
"""Relative standard deviation of a term that states no spread. Assumed: the roofline missed the TPOT of 50 whole servers by 10 % on average
and by 19 % in its worst group (reports/profiles/SERVERS.md); no measurement supports the value for `assumed`."""


def sample_profile(profile: Profile, seed: int, index: int) -> Profile:
    """Sample a cost profile from its stated uncertainty: sample number `index`, the same for the same seed.

    A profile without any uncertainty comes back unchanged. Numbers stay in their bounds: a time below zero becomes zero,
    a curve never falls. Factors are lognormal with median 1.
    """
    data = profile.model_dump(by_alias=True)
    for name, term in profile.terms().items():
        if term.fit is not None and term.fit.covariance is not None:
            _move(data, term.fit, generator(seed, "profile.fit", name, index))
    whole = _factor(profile.spread, generator(seed, "profile.spread", index))
    for name, term in profile.terms().items():
        factor = _factor(relative_spread(term), generator(seed, "profile.term", name, index))
        _scale(data[name], factor if name == "client" else factor * whole)
    return Profile.model_validate(data)


def relative_spread(term: Term) -> float:
    """Return the relative standard deviation of the factor on a whole term."""
    return DECLARED[term.evidence] if term.spread is None else term.spread


def describe_uncertainty(profile: Profile) -> dict[str, str]:
    """Describe the sampled uncertainty of each term; terms without any are left out."""
    found = {"all step times": f"{profile.spread:.1%} a run"} if profile.spread else {}
    fitted = {path.split(".")[0] for fit in _fits(profile) for path in fit.names or ()}
    for name, term in profile.terms().items():
        parts = ["its fit's covariance"] if name in fitted else []
        if spread := relative_spread(term):
            parts.append(f"{spread:.1%} {'on rows it never saw' if term.spread is not None else 'declared'}")
        if parts:
            found[name] = f"{term.evidence}: {' and '.join(parts)}"
    return found


def _fits(profile: Profile) -> Iterator[Fit]:
    return (term.fit for term in profile.terms().values() if term.fit is not None and term.fit.covariance)


def _factor(spread: float, rng: np.random.Generator) -> float:
    return float(np.exp(spread * rng.standard_normal())) if spread else 1.0


def _move(data: dict[str, Any], fit: Fit, rng: np.random.Generator) -> None:
    """Add a sample from the covariance to the fitted numbers."""
    assert fit.names is not None
    covariance = np.array(fit.covariance)
    sd = np.sqrt(np.diag(covariance))
    steps = sd * _correlated(covariance, sd, rng.standard_normal(len(sd)))
    for path, step in zip(fit.names, steps, strict=True):
        term, key, *at = path.split(".")
        if at:
            x, y = data[term][key][int(at[0])]
            data[term][key][int(at[0])] = (x, y + float(step))
        else:
            data[term][key] = max(data[term][key] + float(step), 1e-12 if path == "step.fixed_s" else 0.0)
    for term in {path.split(".")[0] for path in fit.names if ".points." in path}:
        points = data[term]["points"]
        rising = np.maximum.accumulate([max(y, 0.0) for _, y in points])
        data[term]["points"] = [(x, float(y)) for (x, _), y in zip(points, rising, strict=True)]


def _correlated(
    covariance: NDArray[np.float64], sd: NDArray[np.float64], normal: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Correlate standard normals by a covariance matrix, which may be singular or rounded."""
    scale = np.where(sd > 0, sd, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    moved: NDArray[np.float64] = vectors @ (np.sqrt(np.maximum(values, 0.0)) * normal)
    return moved


def _scale(term: dict[str, Any], factor: float) -> None:
    """Multiply all seconds of a term."""
    for key, value in term.items():
        if key.endswith("_s"):
            term[key] = value * factor
        elif key == "points":
            term[key] = [(x, y * factor) for x, y in value]
