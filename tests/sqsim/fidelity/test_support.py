# SPDX-License-Identifier: Apache-2.0
import json
from typing import get_args

from sqsim.fidelity.support import support
from sqsim.models.cost.hardware import HARDWARE
from sqsim.models.cost.known_models import KNOWN_MODELS
from sqsim.models.cost.profile import Evidence

ROWS = {(row["model"], row["gpu"]): row for row in support()}


def test_every_model_and_gpu_has_one_json_row():
    assert set(ROWS) == {(model, gpu) for model in KNOWN_MODELS for gpu in HARDWARE}
    assert len(support()) == len(ROWS)
    assert json.loads(json.dumps(support(), allow_nan=False)) == support()


def test_every_term_says_its_evidence_and_source():
    for row in ROWS.values():
        assert set(row["evidence"].values()) <= set(get_args(Evidence))
        assert set(row["evidence"]) == set(row["sources"])
        assert all(row["sources"].values())


def test_only_what_was_measured_has_a_range():
    for row in ROWS.values():
        measured = {name for name, evidence in row["evidence"].items() if evidence == "measured"}
        assert set(row["ranges"]) == set(row["held_out_error"]) == measured
        assert set(row["in_doubt"]) == set(row["evidence"])


def test_gpt_oss_20b_on_an_h100_rests_on_measurements_and_names_the_other_kernel():
    row = ROWS["gpt-oss-20b", "h100-sxm"]
    assert row["profile"] == "gpt-oss-20b-h100-sxm-fa3-mxfp4moe-vllm"
    assert "enabling triton_kernels MOE kernel" in row["why"]
    assert row["evidence"]["moe"] == "measured"
    assert "gpt-oss-20b-h100-sxm-fa3-bf16moe-sglang" in row["other_profiles"]
    assert row["weights"] == "mxfp4"


def test_a_model_that_does_not_fit_says_why():
    row = ROWS["qwen3-32b", "l40s"]
    assert row["kv_capacity_tokens"] is None
    assert "does not fit" in row["kv_capacity"]
