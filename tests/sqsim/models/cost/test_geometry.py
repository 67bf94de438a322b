# SPDX-License-Identifier: Apache-2.0
"""Known values: the model's own configuration and card; arXiv 2602.22603 and gpt-oss's model card (20.9 B, 3.6 B)."""

import json

import pytest

from sqsim.errors import InputError
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.known_models import KNOWN_MODELS


def write(folder, **changes):
    """A config.json: tiny-gpt-oss with changes; a key set to None is left out."""
    config = {
        key: value for key, value in {**KNOWN_MODELS["tiny-gpt-oss"], **changes}.items() if value is not None
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_gpt_oss_20b_has_the_published_sizes():
    shape = geometry("gpt-oss-20b")
    assert (shape.layers, shape.full_layers, shape.sliding_layers, shape.window) == (24, 12, 12, 128)
    assert shape.parameters / 1e9 == pytest.approx(20.915, abs=5e-4)
    assert shape.active_parameters / 1e9 == pytest.approx(3.61, abs=5e-3)
    assert shape.weight_bytes() / 1e9 == pytest.approx(13.76, abs=5e-3)
    assert shape.weight_bytes("bfloat16") / 1e9 == pytest.approx(41.83, abs=5e-3)


def test_gpt_oss_20b_kv_is_24_kib_full_and_24_kib_sliding():
    shape = geometry("gpt-oss-20b")
    assert shape.kv_bytes_per_token("full") == shape.kv_bytes_per_token("sliding") == 24 * 1024
    assert shape.kv_bytes_per_token("full", "fp8_e4m3") == 12 * 1024
    assert shape.kv_bytes_per_token("full", tensor_parallel=2) == 12 * 1024
    assert shape.kv_bytes_per_token("full", tensor_parallel=16) == 3 * 1024  # 8 heads, each on two GPUs


@pytest.mark.parametrize(
    ("model", "billions"), [("gpt-oss-120b", 116.83), ("Llama-3.1-8B", 8.03), ("Qwen3-32B", 32.76)]
)
def test_other_models_have_the_parameters_of_their_cards(model, billions):
    assert geometry(model).parameters / 1e9 == pytest.approx(billions, abs=5e-3)


def test_dense_models_use_all_parameters_but_the_embedding_table():
    shape = geometry("llama-3.1-8b")
    assert shape.active_parameters == shape.parameters - shape.head_parameters
    assert shape.kv_bytes_per_token("sliding") == 0
    assert shape.window is None


def test_a_tied_embedding_counts_once(tmp_path):
    apart, tied = geometry(write(tmp_path)), geometry(write(tmp_path, tie_word_embeddings=True))
    assert apart.parameters - tied.parameters == apart.head_parameters


def test_a_known_models_own_file_gets_its_name(tmp_path):
    write(tmp_path)
    assert geometry(str(tmp_path)) == geometry("tiny-gpt-oss")
    other = write(tmp_path, vocab_size=513)
    assert geometry(other).name == other


def test_layer_types_default_to_sliding_first(tmp_path):
    assert geometry(write(tmp_path, layer_types=None)) == geometry("tiny-gpt-oss")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Qwen3MoeForCausalLM"]},
            r"'Qwen3MoeForCausalLM' is not covered; covered: GptOss.*Llama.*Qwen3",
        ),
        ({"architectures": None}, r"architecture None is not covered"),
        ({"hidden_size": None}, r"config.json: hidden_size: None is not a whole number from 1 to 10+"),
        ({"vocab_size": -1}, r"vocab_size: -1"),
        ({"num_local_experts": True}, r"num_local_experts: True"),
        ({"layer_types": ["full_attention"]}, r"layer_types must list 4 layers"),
        ({"layer_types": ["linear_attention"] * 4}, r"layer_types must list 4 layers"),
        ({"quantization_config": {"quant_method": "awq"}}, r"'awq' are not covered.*mxfp4"),
        ({"use_sliding_window": True}, r"use_sliding_window"),
        ({"architectures": [["GptOssForCausalLM"]]}, r"architecture \['GptOssForCausalLM'\] is not covered"),
        ({"num_hidden_layers": 10**30}, r"num_hidden_layers: 10+ is not a whole number from 1 to 10000"),
        ({"sliding_window": 1}, r"sliding_window: 1 is not a whole number from 2"),
        ({"num_experts_per_tok": 99}, r"num_experts_per_tok: 99 is not a whole number from 1 to"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads: 3 does not divide \d+ heads"),
    ],
)
def test_a_wrong_config_is_refused_by_file_and_key(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        geometry(write(tmp_path, **changes))


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"'gpt-4' is neither a known name nor a config.json; known: gpt-oss-20b"
    ):
        geometry("gpt-4")
    for text in ("{", "[]", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(InputError, match="Hugging Face"):
            geometry(str(tmp_path))


def test_a_path_that_the_system_refuses_is_named():
    with pytest.raises(InputError, match="xxx: cannot be read: File name too long"):
        geometry("x" * 300)


def test_formats_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="mxfp4 weights need experts"):
        geometry("tiny-llama").weight_bytes("mxfp4")
    with pytest.raises(InputError, match=r"kv_dtype 'int4' is unknown; choose one of bfloat16"):
        geometry("tiny-llama").kv_bytes_per_token("full", "int4")
    for parallel in (0, 3, 128):
        with pytest.raises(InputError, match=f"tensor_parallel {parallel}"):
            geometry("gpt-oss-20b").kv_heads_per_gpu(parallel)
