# SPDX-License-Identifier: Apache-2.0
"""Numbers printed in the SideQuest paper (arXiv 2602.22603v1; gpt-oss-20b, medium effort, one H100, SGLang, FRAMES).

Shown next to our numbers, always marked `published`, never mixed with them. Throughput and run time compare
24 concurrent tasks (uncompressed; memory is full) with 36 (SideQuest).
"""

from __future__ import annotations

from typing import NamedTuple

from sqsim.report.data.sources import Panel


class Published(NamedTuple):
    """Published comparison. `low` and `high` are relative changes; equal where the paper prints one."""

    uncompressed: str
    sidequest: str
    low: float
    high: float

    @property
    def change(self) -> str:
        """Write the change: `+83.9 %` or `−65 to −56 %`."""
        low, high = (f"{100 * x:+.1f}".removesuffix(".0").replace("-", "−") for x in (self.low, self.high))
        return f"{low} %" if low == high else f"{low} to {high} %"


PEAK_TOKENS = Published("", "", -0.65, -0.56)
KV_READS = Published("", "", -0.71, -0.53)

PUBLISHED = {
    # The paper does not state whether its throughput counts aux tokens: it is shown next to both of ours.
    "output_tok_s": Published("828 (24 tasks)", "1,523 (36 tasks)", 0.839, 0.839),
    "total_tok_s": Published("828 (24 tasks)", "1,523 (36 tasks)", 0.839, 0.839),
    "run_time_s": Published("2,356", "1,489", -0.368, -0.368),
    "kv_usage_peak": Published("0.977", "0.450", -0.539, -0.539),
    "peak_tokens_mean": PEAK_TOKENS,
    "kv_reads_main_tokens": KV_READS,
}

THROUGHPUT_POINTS = ((24, 828, "uncompressed"), (36, 1523, "SideQuest"))
"""Concurrent tasks, peak output tok/s, and the setting."""

COLOUR = "#6a3d9a"
"""Drawn in purple, which no variant of this project uses."""

WHERE = "published: gpt-oss-20b, medium effort, one H100, SGLang, FRAMES"


_SYSTEM = ("gpt-oss-20b", "h100-sxm")
"""Model and GPU of the paper's measurements, as scenarios name them."""


def applies(panel: Panel) -> bool:
    """Whether to show the paper's numbers next to a panel: it asks for them, and all its runs used the paper's system."""
    return panel.published == "sidequest" and panel.systems == {_SYSTEM}
