# SPDX-License-Identifier: Apache-2.0
"""Draw tool latencies for recordings without them: FORMATS.md, "Tool latency is a mixture".

The classes are guesses from the figures there: file tools 0.01-0.05 s; shell p50 1.65 s, p99 27 s;
sub-agents 60 s; web calls 0.2-4 s around 2 s, with some at 16-19 s. A tool of no known class counts as web.
"""

from __future__ import annotations

import math
import re

import numpy as np

_CLASSES = (
    ("subagent", re.compile(r"^(task|agent)$|sub_?agent", re.IGNORECASE)),
    ("shell", re.compile(r"bash|shell|exec|terminal|python|command", re.IGNORECASE)),
    ("file", re.compile(r"^(multi)?(read|write|edit|glob|grep|ls|todo)|file|notebook", re.IGNORECASE)),
)
_SHELL_SIGMA = math.log(27 / 1.65) / 2.326  # p99 of the standard normal is 2.326
_WEB_MEDIAN_S, _WEB_SIGMA = 2.0, 0.45
_WEB_SLOW = 0.04


def tool_class(tool: str) -> str:
    """Classify a tool by its name: `subagent`, `shell`, `file` or `web`."""
    return next((name for name, pattern in _CLASSES if pattern.search(tool)), "web")


def tool_latency_s(tool: str, draws: np.random.Generator) -> float:
    """Draw one latency in seconds, rounded to whole milliseconds."""
    kind = tool_class(tool)
    if kind == "file":
        seconds = draws.uniform(0.01, 0.05)
    elif kind == "shell":
        seconds = 1.65 * math.exp(_SHELL_SIGMA * draws.standard_normal())
    elif kind == "subagent":
        seconds = 60.0 * math.exp(0.5 * draws.standard_normal())
    elif draws.random() < _WEB_SLOW:
        seconds = draws.uniform(16, 19)
    else:
        seconds = max(0.2, _WEB_MEDIAN_S * math.exp(_WEB_SIGMA * draws.standard_normal()))
    return round(float(seconds), 3)
