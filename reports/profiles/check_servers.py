"""Set the roofline beside whole-server times of gpt-oss-120b (vLLM 0.18.0, MXFP4) that their publisher measured.

    python reports/profiles/check_servers.py

The prediction is a hand formula, not a simulation: a decode step at the stated concurrency and half the output,
plus every other request's prefill spread over the output. It shows whether the assumed constants of
sqsim/models/roofline.py are of the right size; they were chosen in view of this table, so it is no test of them.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from sqsim.models.cost import CostModel, StepWork, profile
from sqsim.models.geometry import geometry
from sqsim.models.hardware import hardware

MODEL = "gpt-oss-120b"
DATA = Path(__file__).parent / "data" / "gpt_oss_120b_end_to_end.csv"


def predicted_tpot_s(cost: CostModel, requests: int, prompt: int, output: int) -> float:
    context = requests * (prompt + output // 2)
    decode_s = cost.step_s(StepWork((), requests, context, requests * 128))
    prefill_s = cost.step_s(StepWork(((prompt, 0),), 0, 0, 0)) - cost.step_s(StepWork((), 0, 0, 0))
    return decode_s + (requests - 1) * prefill_s / output


def main() -> None:
    off: dict[str, list[float]] = defaultdict(list)
    for row in csv.DictReader(DATA.read_text(encoding="utf-8").splitlines()):
        gpu, parallel = row["system"].replace("_", "-"), int(float(row["tp_size"]))
        cost = CostModel(
            profile(MODEL, gpu, "roofline"), geometry(MODEL), hardware(gpu), tensor_parallel=parallel
        )
        predicted = predicted_tpot_s(cost, int(row["concurrency"]), int(row["isl"]), int(row["osl"]))
        off[f"{gpu} x {parallel}"].append(predicted * 1e3 / float(row["silicon_tpot_ms"]) - 1)
    for group, errors in sorted(off.items()):
        print(
            f"{group:14} {len(errors):3} rows  mean {np.mean(errors):+.2f}  mean absolute {np.mean(np.abs(errors)):.2f}"
        )


if __name__ == "__main__":
    main()
