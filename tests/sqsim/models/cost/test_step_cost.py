# SPDX-License-Identifier: Apache-2.0
"""Laws of step times, and the measured profiles against the rows that they are made from."""

import importlib.util
import math
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sqsim.errors import InputError
from sqsim.models.cost.geometry import geometry
from sqsim.models.cost.hardware import hardware
from sqsim.models.cost.profile import read_profile, shipped_profiles
from sqsim.models.cost.roofline import distinct_experts
from sqsim.models.cost.step_cost import CostModel, Curve, StepWork, profile, window_pairs

ROOT = Path(__file__).parents[4]
H100_BF16 = "gpt-oss-20b-h100-sxm-fa3-bf16moe-sglang"
H100_MXFP4 = "gpt-oss-20b-h100-sxm-fa3-mxfp4moe-vllm"
IDLE = StepWork((), 0, 0, 0)


def model(name="gpt-oss-20b", gpu="h100-sxm", use="auto", **options):
    return CostModel(profile(name, gpu, use), geometry(name), hardware(gpu), **options)


CASES = {
    "measured": model(),
    "measured, mxfp4": model(use=H100_MXFP4),
    "measured, tp 2, fp8": model(tensor_parallel=2, kv_dtype="fp8_e4m3"),
    "roofline": model("gpt-oss-120b", "b200-sxm", tensor_parallel=4),
    "dense": model("llama-3.1-8b", "a100-sxm-80gb"),
    "tiny-llama": model("tiny-llama", "cpu"),
    "tiny-gpt-oss": model("tiny-gpt-oss", "cpu"),
}
costs = pytest.mark.parametrize("cost", CASES.values(), ids=CASES.keys())

rows = st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 60_000)), max_size=4).map(tuple)


@st.composite
def works(draw):
    requests = draw(st.integers(0, 300))
    context = draw(st.integers(requests, requests * 50_000)) if requests else 0
    window = draw(st.integers(min(requests, context), min(context, requests * 128)))
    return StepWork(draw(rows), requests, context, window)


def decoding(requests, context):
    """A decode-only step of requests of that context each."""
    return StepWork((), requests, requests * context, requests * min(context, 128))


# --- laws ---


@costs
@given(work=works())
def test_a_step_takes_time_whatever_is_in_it(cost, work):
    assert 0 < cost.step_s(IDLE) <= cost.step_s(work) < math.inf


@costs
@given(work=works(), more=st.integers(1, 5000))
def test_more_work_never_takes_less_time(cost, work, more):
    time = cost.step_s(work)
    slack = time * (1 - 1e-12)
    for larger in (
        work._replace(decode_requests=work.decode_requests + more),
        work._replace(decode_context=work.decode_context + more),
        work._replace(decode_window=work.decode_window + more),
        work._replace(prefill=(*work.prefill, (more, 0))),
        work._replace(prefill=tuple((new + more, before) for new, before in work.prefill)),
        work._replace(prefill=tuple((new, before + more) for new, before in work.prefill)),
    ):
        assert cost.step_s(larger) >= slack


@costs
@given(work=works(), steps=st.integers(1, 64))
def test_alike_decode_steps_sum_in_closed_form(cost, work, steps):
    """Law 7's ground: the time of n steps of one batch is affine in its context and window, so it sums exactly."""
    requests = max(1, work.decode_requests)
    first = work._replace(prefill=(), decode_requests=requests)
    one_by_one = sum(
        Fraction(cost.step_s(first._replace(decode_context=first.decode_context + requests * step)))
        for step in range(steps)
    )
    base, per_context, per_window = cost.decode_affine(requests)
    grown = steps * first.decode_context + requests * steps * (steps - 1) // 2
    closed = steps * (base + per_window * first.decode_window) + per_context * grown
    assert closed == pytest.approx(float(one_by_one), rel=1e-12)


@given(new=st.integers(0, 300), before=st.integers(0, 300), window=st.integers(1, 200))
def test_window_pairs_count_what_each_new_token_sees(new, before, window):
    assert window_pairs(new, before, window) == sum(min(before + at + 1, window) for at in range(new))


def test_a_window_wider_than_the_context_counts_all_pairs():
    assert window_pairs(5, 3, 1000) == 4 + 5 + 6 + 7 + 8


def test_a_curve_is_flat_before_its_points_and_straight_after_them():
    curve = Curve([(2.0, 1.0), (4.0, 5.0)])
    assert [curve(x) for x in (0, 2, 3, 4, 6)] == [1, 1, 3, 5, 9]
    assert Curve([(1.0, 7.0)])(100) == 7


def test_expected_distinct_experts_runs_from_top_k_to_all():
    assert distinct_experts(32, 4, 1) == pytest.approx(4)
    assert distinct_experts(32, 4, 1000) == pytest.approx(32)


# --- sizes ---


def test_decode_at_24_requests_of_25k_is_the_sum_of_its_parts():
    """By hand: 24 layers of MoE at 571 us, 12 of full attention at 0.65 ns a token, 1.7 ms assumed, 0.9 ms dense."""
    parts_ms = 24 * 0.571 + 12 * (0.0105 + 600_000 * 0.654e-6) + 12 * 0.013 + 1.72 + 24 * 0.0199 + 0.432
    assert model(use=H100_BF16).step_s(decoding(24, 25_000)) * 1e3 == pytest.approx(parts_ms, rel=0.01)


def test_the_moe_kernel_decides_a_decode_step():
    slow, fast = (model(use=use).step_s(decoding(24, 25_000)) for use in (H100_BF16, H100_MXFP4))
    assert 1.5 < slow / fast < 2.0


def test_tensor_parallelism_divides_what_is_split_and_adds_all_reduces():
    for name in ("gpt-oss-20b", "llama-3.1-8b"):
        one, two = model(name), model(name, tensor_parallel=2)
        assert two.decode_affine(8).per_context_token_s == one.decode_affine(8).per_context_token_s / 2
        long = StepWork(((8192, 0),), 0, 0, 0)
        shape, whole = geometry(name), one.profile
        # By hand: launches, the host and the requests of a prefill stay whole; all else is halved; two all-reduces a layer.
        rest = whole.step.fixed_s + shape.layers * whole.step.per_layer_s
        for term, layers in (
            (whole.prefill_full, shape.full_layers),
            (whole.prefill_sliding, shape.sliding_layers),
        ):
            rest += layers * (term.fixed_s + term.per_request_s) if term is not None else 0.0
        link_s = 8192 * 2 * shape.hidden / hardware("h100-sxm").link_bandwidth
        reduces = 2 * shape.layers * (8e-6 + link_s)
        assert two.step_s(long) == pytest.approx(rest + (one.step_s(long) - rest) / 2 + reduces, rel=1e-12)
    assert one.notes == ()
    assert "tensor_parallel 2" in two.notes[0]


def test_reading_a_prefix_is_shared_among_gpus_and_counts_bytes():
    """The read of 50,000 tokens of KV: half of it on each of two GPUs. Its time alone: a profile without the term has the rest."""
    work = StepWork(((1, 50_000),), 0, 0, 0)
    shape, device, whole = geometry("gpt-oss-20b"), hardware("h100-sxm"), profile("gpt-oss-20b", "h100-sxm")
    free = whole.model_copy(update={"prefix_read": whole.prefix_read.model_copy(update={"per_token_s": 0.0})})

    def read_s(**options):
        with_it, without = (CostModel(each, shape, device, **options) for each in (whole, free))
        return with_it.step_s(work) - without.step_s(work)

    assert read_s() == pytest.approx(shape.full_layers * 50_000 * whole.prefix_read.per_token_s)
    assert read_s(tensor_parallel=2) == pytest.approx(read_s() / 2)
    assert read_s(kv_dtype="fp8_e4m3") < read_s()


def test_a_context_at_the_measured_frontier_is_inside():
    cost = model()
    requests, context = cost.profile.decode_full.frontier[0]
    inside, beyond = (decoding(int(requests), int(context) + more) for more in (0, 1))
    assert cost.out_of_range(inside) == ()
    assert "decode attention" in cost.out_of_range(beyond)[0]


# SGLang 0.5.14 rows of aiconfigurator-core 0.12.0, one layer of full decode attention, in seconds: (GPU, KV) -> 32 x 16,384.
WIDE = {
    ("h200-sxm", "bfloat16"): 0.291e-3,
    ("h200-sxm", "fp8_e4m3"): 0.287e-3,
}


@pytest.mark.parametrize(("gpu", "kv"), WIDE)
def test_8_bit_kv_takes_the_time_that_was_measured_with_it(gpu, kv):
    """Half the bytes are not half the time: on an H200 they gain next to nothing at 32 requests of 16,384 tokens."""
    term = profile("gpt-oss-20b", gpu).with_kv(kv).decode_full
    found = Curve(term.points)(32) + 32 * 16_384 * term.per_token_s
    assert found == pytest.approx(WIDE[gpu, kv], rel=0.08)


def test_8_bit_kv_is_measured_where_rows_exist_and_derived_by_bytes_elsewhere():
    plain, fp8 = model(), model(kv_dtype="fp8_e4m3")
    gain = plain.decode_affine(8).per_context_token_s / fp8.decode_affine(8).per_context_token_s
    assert 1.1 < gain < 1.3  # H100: 1.27 for large KV, by the publisher's rows of another head dimension
    assert fp8.notes == ()
    assert "8-bit KV" in fp8.profile.decode_full.source
    dense = "llama-3.1-8b"
    one, half = model(dense), model(dense, kv_dtype="fp8_e4m3")
    assert half.decode_affine(8).per_context_token_s == one.decode_affine(8).per_context_token_s / 2
    assert "kv_dtype fp8_e4m3" in half.notes[0]


@pytest.mark.parametrize(("rows", "waves"), [(1, 0), (16, 0), (17, 1), (33, 1), (34, 2)])
def test_a_prefill_pays_for_each_wave_of_tiles_after_the_first(rows, waves):
    """Tiles of 24 new tokens a KV head, 16.5 of them at a time: 16 requests of 24 tokens are one wave, 17 are two."""
    whole = profile("gpt-oss-20b", "h100-sxm")
    terms = {name: getattr(whole, name) for name in ("prefill_full", "prefill_sliding")}
    assert [(term.tile_tokens, term.tiles_at_once) for term in terms.values()] == [(24.0, 16.5)] * 2
    free = whole.model_copy(
        update={name: term.model_copy(update={"per_wave_s": 0.0}) for name, term in terms.items()}
    )
    shape, device, work = geometry("gpt-oss-20b"), hardware("h100-sxm"), StepWork(((24, 0),) * rows, 0, 0, 0)
    with_them, without = (CostModel(each, shape, device).step_s(work) for each in (whole, free))
    expected = 12 * waves * (terms["prefill_full"].per_wave_s + terms["prefill_sliding"].per_wave_s)
    assert with_them - without == pytest.approx(expected, abs=1e-12)


def test_a_short_prefill_behind_a_long_prefix_reads_the_prefix():
    cost = model()
    alone, behind = (cost.step_s(StepWork(((8, before),), 0, 0, 0)) for before in (0, 25_000))
    assert behind - alone > 25_000 * 24 * 1024 / hardware("h100-sxm").bandwidth


def test_leaving_the_measured_range_is_named_in_few_words():
    cost = model()
    assert cost.out_of_range(decoding(64, 8000)) == ()
    assert cost.out_of_range(StepWork(((8192, 0),), 0, 0, 0)) == ()
    expected = "decode attention: 32 requests at 32K context: measured to batch 32 at 8K"
    assert cost.out_of_range(decoding(24, 25_000)) == cost.out_of_range(decoding(30, 20_000)) == (expected,)
    assert "512 requests" in cost.out_of_range(decoding(300, 100))[0]
    assert cost.out_of_range(StepWork(((20_000, 5),), 0, 0, 0)) == (
        "moe: 32K tokens a step: measured to 16384",
        "prefill attention: 32K new tokens: measured to 16384",
        "prefill attention behind a prefix: not measured, derived",
    )
    assert (
        model("llama-3.1-8b").out_of_range(decoding(1000, 100_000)) == ()
    )  # nothing was measured: all derived


# --- profiles ---


def test_making_the_profiles_again_gives_the_committed_numbers():
    spec = importlib.util.spec_from_file_location("make_profiles", ROOT / "reports/profiles/make_profiles.py")
    make_profiles = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_profiles)
    made = make_profiles.all_profiles()
    assert set(made) == {f"{each.name}.yaml" for each in shipped_profiles()}
    for name, text in made.items():
        committed = (ROOT / "sqsim/models/cost/profiles" / name).read_text()
        again, before = dict(leaves(yaml.safe_load(text))), dict(leaves(yaml.safe_load(committed)))
        assert again.keys() == before.keys()
        for at, value in before.items():
            expected = pytest.approx(value, rel=1e-3, abs=0) if isinstance(value, float) else value
            assert again[at] == expected, at


def leaves(tree, at=()):
    """(path, value) of everything in nested dicts and lists."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if pairs is None:
        yield at, tree
    else:
        for key, value in pairs:
            yield from leaves(value, (*at, key))


@pytest.mark.parametrize("each", shipped_profiles(), ids=lambda each: each.name)
def test_a_shipped_profile_holds_on_rows_that_it_never_saw(each):
    """The aim was set beforehand: a mean absolute error of 8 % on held-out rows."""
    assert each.name.startswith(f"{each.model}-{each.gpu}-")  # how `auto` finds it
    for term in each.terms().values():
        assert (term.evidence == "measured") == (term.fit is not None) == bool(term.ranges)
        assert term.fit is None or term.fit.held_out_mean_abs_error < 0.08


def test_each_pair_has_one_default_at_most():
    pairs = [(each.model, each.gpu) for each in shipped_profiles() if each.auto]
    assert len(pairs) == len(set(pairs))
    # SGLang 0.5.23's own rule for gpt-oss on Hopper: arg_groups/model_overrides/gpt_oss.py, moe_runner_backend triton_kernel
    assert profile("gpt-oss-20b", "h100-sxm").name == H100_MXFP4
    assert profile("qwen3-32b", "h100-sxm").name == "qwen3-32b-h100-sxm-roofline"
    assert set(profile("qwen3-32b", "h100-sxm").evidence().values()) == {"derived", "assumed"}


def shipped_text(change=lambda data: None):
    data = yaml.safe_load((ROOT / "sqsim/models/cost/profiles" / f"{H100_BF16}.yaml").read_text())
    change(data)
    return yaml.safe_dump(data)


def test_a_profile_of_ones_own_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(shipped_text(lambda data: data.update(name="mine")))
    assert profile("gpt-oss-20b", "h100-sxm", str(path)).name == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(speed=1), r"mine.yaml: speed: Extra inputs"),
        (lambda data: data["step"].pop("fixed_s"), r"mine.yaml: step.fixed_s: Field required"),
        (lambda data: data["step"].update(fixed_s=0), r"step.fixed_s: .*greater than 0, got 0"),
        (
            lambda data: data["decode_full"].update(per_token_s=math.nan),
            r"decode_full.per_token_s: .*finite.*nan",
        ),
        (lambda data: data["prefill_full"].update(per_pair_s=-1e-9), r"prefill_full.per_pair_s"),
        (lambda data: data["moe"].update(points=[[1, 2.0], [2, 1.0]]), r"moe.points: .*must rise: \[2, 1\]"),
        (lambda data: data["moe"].update(points=[]), r"moe.points: .*at least 1 item"),
        (lambda data: data["moe"].update(evidence="guessed"), r"moe.evidence: .*'measured'"),
        (lambda data: data.pop("prefill_sliding"), r"decode_sliding and prefill_sliding belong together"),
        (lambda data: data.update(schema="sqsim-profile/9"), r"schema: .*sqsim-profile/1"),
    ],
)
def test_a_wrong_profile_is_refused_by_file_and_key(change, message):
    with pytest.raises(InputError, match=message):
        read_profile(shipped_text(change), "mine.yaml")


def test_what_is_no_profile_is_refused(tmp_path):
    for text in ("a: [", "{", "[" * 100_000):
        with pytest.raises(InputError, match=r"^mine.yaml: not YAML: [^\n]*$"):
            read_profile(text, "mine.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"binary\.yaml: not UTF-8 text"):
        profile("gpt-oss-20b", "h100-sxm", str(tmp_path / "binary.yaml"))
    with pytest.raises(InputError, match=r"mine.yaml: profile: .*None"):
        read_profile("", "mine.yaml")
    with pytest.raises(
        InputError, match=r"cannot be read: No such file or directory; known profiles: .*sglang"
    ):
        profile("gpt-oss-20b", "h100-sxm", str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match=r"'fast' is unknown; choose auto, roofline, .*sglang"):
        profile("gpt-oss-20b", "h100-sxm", "fast")


def test_a_profile_is_refused_for_another_pair_or_shape():
    with pytest.raises(InputError, match="is for gpt-oss-20b on h100-sxm, not gpt-oss-20b on a100-sxm-80gb"):
        profile("gpt-oss-20b", "a100-sxm-80gb", H100_BF16)
    with pytest.raises(
        InputError, match=r"moe: given, but llama-3.1-8b has 0 experts and 0 sliding layers; remove it"
    ):
        CostModel(profile("gpt-oss-20b", "h100-sxm"), geometry("llama-3.1-8b"), hardware("h100-sxm"))
    with pytest.raises(InputError, match=r"moe: missing, but gpt-oss-20b has 32 experts"):
        CostModel(profile("llama-3.1-8b", "h100-sxm"), geometry("gpt-oss-20b"), hardware("h100-sxm"))
