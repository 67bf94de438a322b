# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu/kernels.py runs end to end on a CPU, so that it does on the day, and a wrong kernel does not pass."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.gpu import kernels as command
from benchmarks.gpu.kernel_bench import agreement, cases, sizes
from sqsim.models.cost.eviction_cost import in_place_cost
from sqsim.models.cost.hardware import hardware

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
IN_PLACE = {"compact_spans", "compact_mask", "shift", "fill_pages", "move_rotated"}


def test_the_rehearsal_checks_stresses_and_times_every_kernel(tmp_path):
    path = tmp_path / "kernels.jsonl"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/gpu/kernels.py", "--rehearse", "-o", path],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (rows[0]["schema"], rows[0]["rehearsal"]) == ("sqkernels-bench/1", True)
    by_kind = {
        kind: [row for row in rows[1:] if row["kind"] == kind] for kind in ("check", "race", "time", "gemm")
    }
    names = [(case.kernel, case.what) for case in cases.cases(sizes.SMALL, CPU)]
    for kind in ("check", "time"):
        assert [(row["kernel"], row["what"]) for row in by_kind[kind]] == names
    assert {row["kernel"]: (row["cases"], row["wrong"]) for row in by_kind["race"]} == dict.fromkeys(
        IN_PLACE, (4, [])
    )
    assert all(row["device_s"]["median"] > 0 < row["call_s"]["median"] for row in by_kind["time"])
    assert {len(row["rivals"]) for row in by_kind["time"]} == {0, 1}
    assert len(by_kind["gemm"]) == 6 * len(sizes.SMALL.tokens)
    assert rows[-1] == {"kind": "end", "right": True, "left_out_for_time": []}
    assert in_place_cost(hardware("cpu"), as_measured(path)).evidence == "measured"


def as_measured(path):
    """The rehearsal's record as a GPU's, which it is but for its times."""
    measured = path.with_name("measured.jsonl")
    measured.write_text(path.read_text().replace('"rehearsal": true', '"rehearsal": false', 1))
    return str(measured)


def test_what_does_not_fit_is_named(tmp_path):
    out = io.StringIO()
    assert command.run(CPU, out, until=0.0) == 0
    end = json.loads(out.getvalue().splitlines()[-1])
    assert end["left_out_for_time"][0] == "check: compact_spans, 1 row of 96"
    assert len(end["left_out_for_time"]) == 2 * len(cases.cases(sizes.SMALL, CPU)) + 1 + 12


def test_a_wrong_kernel_is_found():
    """A mask that is off by one place; scores off by a hundredth."""
    for number, change in ((-1, lambda kept: kept.roll(1)), (7, lambda scores: scores + 0.01)):
        right = cases.cases(sizes.SMALL, CPU)[number]
        prepared = right.prepare()
        wrong = prepared._replace(run=lambda prepared=prepared, change=change: change(prepared.run()))
        case = cases.Case(right.kernel, right.what, lambda wrong=wrong: wrong, right.exact)
        assert not agreement.check(case)["agrees"]
        assert agreement.check(right)["agrees"]
