"""What the SideQuest paper prints (arXiv 2602.22603v1; gpt-oss-20b, medium effort, one H100, SGLang, FRAMES).

Shown beside our numbers, always marked `published`, never mixed with them. Throughput and run time compare
24 concurrent tasks (uncompressed; memory is full) with 36 (SideQuest).
"""

from __future__ import annotations

from typing import NamedTuple

from sqsim.report.data.sources import Panel


class Published(NamedTuple):
    """One published comparison. `low` and `high` are relative changes; equal where the paper prints one."""

    uncompressed: str
    sidequest: str
    low: float
    high: float

    @property
    def change(self) -> str:
        """The change as text: `+83.9 %` or `−65 to −56 %`."""
        low, high = (f"{100 * x:+.1f}".removesuffix(".0").replace("-", "−") for x in (self.low, self.high))
        return f"{low} %" if low == high else f"{low} to {high} %"


PEAK_TOKENS = Published("", "", -0.65, -0.56)
KV_READS = Published("", "", -0.71, -0.53)

PUBLISHED = {
    # Whether the paper's throughput counts aux tokens is not stated: it stands beside both of ours.
    "output_tok_s": Published("828 (24 tasks)", "1,523 (36 tasks)", 0.839, 0.839),
    "total_tok_s": Published("828 (24 tasks)", "1,523 (36 tasks)", 0.839, 0.839),
    "run_time_s": Published("2,356", "1,489", -0.368, -0.368),
    "kv_usage_peak": Published("0.977", "0.450", -0.539, -0.539),
    "peak_tokens_mean": PEAK_TOKENS,
    "kv_reads_main_tokens": KV_READS,
}

THROUGHPUT_POINTS = ((24, 828, "uncompressed"), (36, 1523, "SideQuest"))
"""Concurrent tasks, peak output tok/s, and whose."""

COLOUR = "#6a3d9a"
"""Drawn in purple, which no variant of this project has."""

WHERE = "published: gpt-oss-20b, medium effort, one H100, SGLang, FRAMES"


_SYSTEM = ("gpt-oss-20b", "h100-sxm")
"""What the paper measured on, as scenarios name it."""


def applies(panel: Panel) -> bool:
    """Whether the paper's numbers belong beside a panel: it asks for them, and all of it ran on the paper's system."""
    return panel.published == "sidequest" and panel.systems == {_SYSTEM}
