# SPDX-License-Identifier: Apache-2.0
"""The page that says how far to trust a number: it is what its command writes from the data of this repository."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from sqsim.fidelity.step_fit import Run, fit_steps, predicted_s
from sqsim.models.cost.geometry import geometry

TRUST = Path(__file__).parents[3] / "reports" / "trust"


@pytest.fixture(scope="module")
def trust():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TRUST))
        patch.syspath_prepend(str(TRUST.parent / "profiles"))
        yield importlib.import_module("make_trust")


@pytest.fixture(scope="module")
def runs(trust):
    return trust.recorded()


def test_recorded_runs_are_predicted_by_a_fit_to_others(runs):
    """The first recordings, on one server at one time: sums within 8 %; they show no trend with KV pressure."""
    shape = geometry("tiny-llama")
    fit = fit_steps([Run(run.name, run.steps) for run in runs if run.fitted], shape)
    judged = [run for run in runs if not run.fitted and not run.later and run.name != "L"]
    assert len(judged) >= 6
    for run in judged:
        assert predicted_s(fit, run.steps, shape).sum() == pytest.approx(run.seconds.sum(), rel=0.08), run.name
    full = [
        (predicted_s(fit, run.steps, shape)[run.usage > 0.8].sum(), run.seconds[run.usage > 0.8].sum())
        for run in judged
    ]
    predicted, measured = np.sum(full, axis=0)
    assert predicted == pytest.approx(measured, rel=0.08)


def test_usage_before_a_step_is_a_share(runs):
    for run in runs:
        assert run.usage.min() >= 0
        assert run.usage.max() <= 1


def test_the_page_is_what_its_command_writes(trust):
    assert trust.page() == (TRUST / "README.md").read_text()
