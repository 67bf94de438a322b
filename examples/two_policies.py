# SPDX-License-Identifier: Apache-2.0
"""Compare two policies on a recorded agent session: `.venv/bin/python examples/two_policies.py`; takes a few seconds.

24 agents, each replaying the session of traces/weka/trace_0617.json, share one H100 whose KV pool is cut to 150,000 tokens, 8 of
them at a time. Both runs see the same load; only the policy differs.
"""

from __future__ import annotations

from pathlib import Path

from sqsim import Scenario, compare, simulate

TRACE = Path(__file__).parents[1] / "traces/weka/trace_0617.json"


def main() -> None:
    """Run both, and print what changed."""
    base = Scenario(
        traces=TRACE,
        tasks=24,
        resample=True,
        load={"concurrency": 8},
        engine={"kv_capacity": 150_000},
    )
    nothing = simulate(base)
    keep_last = simulate(base.with_(policy={"name": "keep_last", "n": 3}))
    print(nothing)
    print(keep_last)
    print(compare(nothing, keep_last, names=["none", "keep_last"]))


if __name__ == "__main__":
    main()
