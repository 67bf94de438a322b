# SPDX-License-Identifier: Apache-2.0
"""Observation of a tracing tool: a model call, a tool's run, an agent, or anything else, and what it is part of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqsim.trace.formats.base import SourceFile
from sqsim.trace.formats.request_log.exchange import Exchange
from sqsim.trace.formats.request_log.tool_runs import ToolRun

Kind = Literal["model", "tool", "agent", "other"]


@dataclass
class Observed:
    """Span of a trace. `call` belongs to a model call, `run` to a tool; `failed`: it ended in an error."""

    file: SourceFile
    trace: str
    name: str
    parent: str
    kind: Kind
    begins_s: float | None = None
    ends_s: float | None = None
    session: str = ""
    failed: bool = False
    call: Exchange | None = None
    run: ToolRun | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.trace, self.name
