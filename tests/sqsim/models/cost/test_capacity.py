# SPDX-License-Identifier: Apache-2.0
import pytest

from sqsim.errors import InputError
from sqsim.models.cost.capacity import kv_capacity
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.hardware import hardware
from sqsim.scenario.engine import Engine

OSS, H100 = geometry("gpt-oss-20b"), hardware("h100-sxm")
PACKED, UPCAST = OSS.weight_bytes("mxfp4"), OSS.weight_bytes("bfloat16")


DEFAULTS = {  # a scenario's
    name: Engine.model_fields[name].default
    for name in (
        "mem_fraction",
        "kv_dtype",
        "swa_pool",
        "swa_full_tokens_ratio",
        "page_size",
        "tensor_parallel",
    )
}


def capacity(weight_bytes=UPCAST, shape=OSS, gpu=H100, **options):
    return kv_capacity(shape, gpu, weight_bytes, **{**DEFAULTS, "given": None, **options})


@pytest.mark.parametrize("weight_bytes", [PACKED, UPCAST])
@pytest.mark.parametrize("ratio", [0.1, 0.8, 1.0])
def test_the_pools_fill_what_sglang_leaves_for_kv(weight_bytes, ratio):
    """SGLang: free after weights - total * (1 - mem_fraction), spent on full and sliding slots."""
    pools = capacity(weight_bytes, swa_full_tokens_ratio=ratio)
    total = H100.memory_bytes - H100.context_bytes
    budget = (total - weight_bytes) - total * (1 - 0.88)
    spent = 24 * 1024 * (pools.tokens + pools.swa_tokens)
    assert 0 <= budget - spent < 3 * 24 * 1024
    assert pools.swa_tokens == int(pools.tokens * ratio)


def test_a_slot_costs_43_kib_and_a_small_sliding_pool_holds_1_64_times_the_tokens():
    wide, narrow = capacity(), capacity(swa_full_tokens_ratio=0.1)
    assert wide.bytes_per_token == pytest.approx(43.2 * 1024)
    assert narrow.tokens / wide.tokens == pytest.approx(1.64, abs=5e-3)


def test_without_a_sliding_pool_every_token_is_in_every_layer():
    pools = capacity(swa_pool=False)
    assert pools.swa_tokens is None
    assert pools.bytes_per_token == 48 * 1024
    assert pools.tokens == pytest.approx(capacity(swa_full_tokens_ratio=1.0).tokens, abs=1)


def test_a_dense_model_has_one_pool():
    llama = geometry("llama-3.1-8b")
    assert capacity(llama.weight_bytes(), llama).swa_tokens is None


def test_fp8_doubles_and_tensor_parallelism_more_than_doubles_the_tokens():
    assert capacity(kv_dtype="fp8_e5m2").tokens == pytest.approx(2 * capacity().tokens, abs=1)
    assert capacity(tensor_parallel=2).tokens > 2 * capacity().tokens


def test_pools_are_whole_pages():
    pools = capacity(page_size=64)
    assert pools.tokens % 64 == pools.swa_tokens % 64 == 0
    assert 0 <= capacity().tokens - pools.tokens < 64


def test_a_given_capacity_is_taken_as_it_is():
    """SGLang 0.5.23 on a CPU with --max-total-tokens 4096: 4096 full and 3276 sliding tokens."""
    pools = capacity(given=4096)
    assert (pools.tokens, pools.swa_tokens) == (4096, 3276)
    assert pools.how.startswith("given: 4096 tokens")
    assert capacity(65e9, geometry("gpt-oss-120b"), hardware("l40s"), given=1000).tokens == 1000


def test_how_names_the_numbers():
    assert "0.88 x 78.58 GiB" in capacity().how
    assert "38.96 GiB of weights" in capacity().how


def test_a_model_that_does_not_fit_is_refused_with_numbers_and_fix():
    big = geometry("gpt-oss-120b")
    with pytest.raises(
        InputError, match=r"gpt-oss-120b does not fit on 1 x l40s.*GiB of weights.*engine.tensor_parallel"
    ):
        capacity(big.weight_bytes(), big, hardware("l40s"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_fraction": 0.0}, "mem_fraction 0.0 is out of bounds"),
        ({"mem_fraction": 1.5}, "mem_fraction 1.5"),
        ({"swa_full_tokens_ratio": float("nan")}, "swa_full_tokens_ratio nan"),
        ({"page_size": 0}, "page_size 0"),
        (
            {"page_size": 10**6},
            r"engine.page_size 1000000: one page is larger than the KV pool of 7\d{5} tokens .* lower it$",
        ),
        ({"given": 63, "page_size": 64}, "kv_capacity 63 is less than one page of 64"),
        ({"given": 4, "swa_full_tokens_ratio": 0.1}, "swa_full_tokens_ratio 0.1 of 4 tokens"),
        ({"given": 1}, "ratio 0.8 of 1 tokens is less .* raise it, or engine.kv_capacity to at least 2$"),
    ],
)
def test_values_out_of_bounds_are_refused_by_name(options, message):
    with pytest.raises(InputError, match=message):
        capacity(**options)
