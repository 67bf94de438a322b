# SPDX-License-Identifier: Apache-2.0
"""Drawn profiles: what is doubted varies as the profile says, what is not stays, and every draw is a profile."""

import numpy as np
import pytest
import yaml

from sqsim.errors import InputError
from sqsim.models.cost.profile import ClientTerm, profile_text, read_profile
from sqsim.models.cost.step_cost import profile
from sqsim.models.cost.uncertainty import DECLARED, describe_uncertainty, sample_profile

MEASURED = profile("gpt-oss-20b", "h100-sxm")
CERTAIN = {"evidence": "measured", "source": "a test", "spread": 0.0}


def certain(**changes):
    """The measured profile with nothing in doubt, but for the changes of its terms."""
    data = MEASURED.model_dump(by_alias=True)
    for name in MEASURED.terms():
        data[name] |= {**CERTAIN, "fit": None}
    for path, value in changes.items():
        term, _, key = path.partition("__")
        data[term][key] = value
    return type(MEASURED).model_validate(data)


def fit(names, covariance):
    errors = dict.fromkeys(("mean_abs_error", "held_out_mean_abs_error", "held_out_max_abs_error"), 0.0)
    return {"rows": 9, "held_out_rows": 0, "names": names, "covariance": covariance, **errors}


def test_what_is_certain_is_drawn_as_it_is():
    assert sample_profile(certain(), 0, 1) == certain()
    assert describe_uncertainty(certain()) == {}


def test_a_draw_is_keyed_by_seed_and_number():
    assert sample_profile(MEASURED, 7, 1) == sample_profile(MEASURED, 7, 1)
    assert len({sample_profile(MEASURED, seed, at).step.fixed_s for seed in (0, 1) for at in range(3)}) == 6


def test_numbers_vary_together_as_the_covariance_says():
    names = ["prefill_full.per_token_s", "prefill_full.per_pair_s"]
    sd, correlation = np.array([1e-9, 2e-13]), -0.8
    covariance = np.outer(sd, sd) * [[1, correlation], [correlation, 1]]
    one = certain(prefill_full__fit=fit(names, covariance.tolist()))
    terms = [sample_profile(one, 0, at).prefill_full for at in range(2000)]
    found = np.cov([[each.per_token_s for each in terms], [each.per_pair_s for each in terms]])
    assert np.sqrt(np.diag(found)) == pytest.approx(sd, rel=0.06)
    assert found[0, 1] / np.prod(np.sqrt(np.diag(found))) == pytest.approx(correlation, abs=0.03)
    assert sample_profile(one, 0, 0).prefill_full.per_request_s == MEASURED.prefill_full.per_request_s


def test_a_spread_scales_a_whole_term_and_no_other():
    one = certain(moe__spread=0.1)
    for at in range(5):
        other = sample_profile(one, 0, at)
        factors = {y / before for (_, y), (_, before) in zip(other.moe.points, one.moe.points, strict=True)}
        assert max(factors) == pytest.approx(min(factors))
        assert other.model_copy(update={"moe": one.moe}) == one
    logs = [np.log(sample_profile(one, 0, at).moe.points[0][1] / one.moe.points[0][1]) for at in range(2000)]
    assert np.mean(logs) == pytest.approx(0, abs=0.01)
    assert np.std(logs) == pytest.approx(0.1, rel=0.06)


def test_the_spread_of_a_run_scales_all_step_times_alike():
    one = certain().model_copy(update={"spread": 0.2})
    other = sample_profile(one, 0, 3)
    factor = other.step.fixed_s / one.step.fixed_s
    assert factor != 1
    assert other.prefix_read.per_token_s / one.prefix_read.per_token_s == pytest.approx(factor)
    assert other.decode_sliding.points[1][1] / one.decode_sliding.points[1][1] == pytest.approx(factor)


def test_what_nobody_measured_has_a_declared_doubt():
    roofline = profile("qwen3-32b", "h100-sxm")
    assert describe_uncertainty(roofline)["step"] == "assumed: 50.0% declared"
    assert describe_uncertainty(MEASURED)["moe"] == f"measured: {MEASURED.moe.spread:.1%} on rows it never saw"
    steps = [np.log(sample_profile(roofline, 0, at).step.fixed_s) for at in range(500)]
    assert np.std(steps) == pytest.approx(DECLARED["assumed"], rel=0.15)


def test_draws_stay_in_their_bounds():
    """A variance far above the value: times are not negative, curves rise, and the profile is read again."""
    names = [f"decode_full.points.{at}" for at in range(3)] + ["decode_full.per_token_s", "step.fixed_s"]
    one = certain(decode_full__fit=fit(names, np.diag([1e-4] * 5).tolist()))
    for at in range(20):
        other = sample_profile(one, 0, at)
        assert read_profile(profile_text(other, "a test"), "text") == other


@pytest.mark.parametrize(
    ("names", "covariance", "message"),
    [
        (["decode_full.speed"], [[1.0]], "'decode_full.speed' is no number of this profile"),
        (["moe.points.99"], [[1.0]], "'moe.points.99' is no number"),
        (["step.fixed_s"], [[1.0, 0.0]], "covariance must be 1 x 1"),
        (["step.fixed_s"], [[-1.0]], "negative variance"),
        (["step.fixed_s"], None, "belong together"),
    ],
)
def test_a_fit_about_nothing_is_refused(names, covariance, message):
    data = MEASURED.model_dump(by_alias=True, mode="json")
    data["step"]["fit"] = fit(names, covariance)
    with pytest.raises(InputError, match=message):
        read_profile(yaml.safe_dump(data), "mine.yaml")


def test_the_client_is_no_part_of_the_runs_factor():
    """`Profile.spread` is the rest of the error of step times; the client's time is not one of them."""
    client = ClientTerm(**CERTAIN, request_s=0.004, response_s=0.002)
    one = certain().model_copy(update={"spread": 0.3, "client": client})
    other = sample_profile(one, 0, 3)
    assert other.client == client
    assert other.step.fixed_s != one.step.fixed_s
