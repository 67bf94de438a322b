# SPDX-License-Identifier: Apache-2.0
"""What an eviction in place costs: a floor over a stated share of the bandwidth, or what a GPU's record says."""

from __future__ import annotations

import json

import pytest

from sqsim.errors import InputError
from sqsim.models.cost.eviction_cost import in_place_cost
from sqsim.models.cost.hardware import hardware

H200 = hardware("h200-sxm")


def record(tmp_path, *rows, gpu="h200-sxm", rehearsal=False, right=True, schema="sqkernels-bench/1"):
    path = tmp_path / "kernels.jsonl"
    head = {"schema": schema, "gpu": gpu, "rehearsal": rehearsal, "device": "NVIDIA H200"}
    path.write_text("\n".join(map(json.dumps, [head, *rows, {"kind": "end", "right": right}])) + "\n")
    return str(path)


def timed(floor_bytes, seconds, kernel="compact_spans"):
    return {"kind": "time", "kernel": kernel, "floor_bytes": floor_bytes, "device_s": {"median": seconds}}


def test_the_floor_by_hand():
    """Two launches of 5 us; 8 bytes a position at a quarter of 4.8 TB/s (NVIDIA's H200 datasheet)."""
    cost = in_place_cost(H200)
    assert cost.evidence == "assumed"
    assert cost.seconds(0) == pytest.approx(10e-6)
    assert cost.seconds(24_576) == pytest.approx(10e-6 + 24_576 * 8 / 1.2e12)


def test_a_record_is_a_line_through_its_smallest_and_largest_size(tmp_path):
    rows = [timed(800, 6e-6), timed(8000, 5e-6), timed(8_000_800, 16e-6), timed(80, 1.0, kernel="compact_mask")]
    cost = in_place_cost(H200, record(tmp_path, *rows))
    assert cost.evidence == "measured"
    assert cost.seconds(100) == pytest.approx(6e-6)
    assert cost.seconds(1_000_100) == pytest.approx(16e-6)
    assert "compact_spans in kernels.jsonl" in cost.source


def test_more_bytes_never_take_less_time(tmp_path):
    """Noise at sizes bound by latency alone."""
    assert in_place_cost(H200, record(tmp_path, timed(80, 6e-6), timed(8000, 5e-6))).per_token_s == 0


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"gpu": "h100-sxm"}, "measured on h100-sxm, and engine.gpu is h200-sxm"),
        ({"rehearsal": True}, "a rehearsal on a CPU, and engine.gpu is h200-sxm"),
        ({"right": False}, "does not state that all kernels were right"),
        ({"schema": "sqreal-serve/1"}, "no record of kernels: .*'sqkernels-bench/1'"),
    ],
)
def test_a_record_that_says_nothing_of_this_gpu_is_refused(tmp_path, made, message):
    path = record(tmp_path, timed(80, 6e-6), timed(8000, 7e-6), **made)
    with pytest.raises(InputError, match=message):
        in_place_cost(H200, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("", "no record of kernels"),
        ("not JSON\n", "no record of kernels"),
        (
            '{"schema": "sqkernels-bench/1", "gpu": "h200-sxm", "rehearsal": false}\n',
            "does not state that all kernels",
        ),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, text, message):
    path = tmp_path / "kernels.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"{path}: .*{message}"):
        in_place_cost(H200, str(path))


@pytest.mark.parametrize("rows", [[], [timed(80, 6e-6)], [timed(80, 6e-6), timed(80, 7e-6)]])
def test_one_size_makes_no_line(tmp_path, rows):
    with pytest.raises(InputError, match="compact_spans is not timed at two sizes"):
        in_place_cost(H200, record(tmp_path, *rows))
