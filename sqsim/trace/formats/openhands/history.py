# SPDX-License-Identifier: Apache-2.0
"""Reader of an OpenHands history: events of one model response are one call, and observations answer its actions."""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.messages import Reader, counts
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Invocation, Step
from sqsim.trace.formats.trajectories import like, moment_s


class History(Reader):
    """Reader of events. `usages`: token counts by response id. `timed`: each answered call has both its times."""

    def __init__(self, notes: Notes, usages: dict[str, Node]) -> None:
        super().__init__(notes)
        self.timed = True
        self._usages = usages
        self._reply = ""
        self._made: dict[str, tuple[Invocation, float | None]] = {}
        self._kept: str | None = None

    def output(self, event: Node, response: str, text: str, reasoning: str = "") -> Step:
        """Return the step of a model response; a new one for an id that the last step has not."""
        if response and response == self._reply and self.steps:
            return self.steps[-1]
        self.read(like(event, {"role": "assistant", "content": text, "reasoning_content": reasoning}))
        self._reply = response
        step = self.steps[-1]
        if self._kept is not None and len(self.steps) > 1:
            step.restarted, step.kept = True, self._kept
        self._kept = None
        if (usage := self._usages.get(response)) is not None:
            step.prompt, step.output = counts(usage) or (None, None)
        return step

    def action(self, event: Node, step: Step, tool: str, arguments: Any, call_id: str) -> None:
        """Note a call, under the ids by which its observation may name it."""
        self.call(step, tool, arguments, call_id)
        self._made[call_id] = step.calls[-1], moment_s(event, "timestamp")

    def observed(self, event: Node, call_id: str, content: Any, *, failed: bool) -> None:
        """Read an observation: the response of the call with this id, or of the oldest open one."""
        waiting = [call for step in self.steps[-1:] for call in step.calls if call.response is None]
        known = self._made.get(call_id)
        if known is None and not call_id and waiting:
            known = next(((call, at) for call, at in self._made.values() if call is waiting[0]), None)
        self.read(
            like(event, {"role": "tool", "tool_call_id": call_id, "content": content, "is_error": failed})
        )
        if known is None or known[0].response is None:
            return
        call, made_s = known
        now_s = moment_s(event, "timestamp")
        self.timed &= made_s is not None and now_s is not None
        if made_s is not None and now_s is not None:
            call.latency_s = round(max(0.0, now_s - made_s), 3)
        call.parallel = False  # actions run one after the other

    def condensed(self, summary: str) -> None:
        """Restart the context at the next output, with a condenser's summary."""
        if self.steps:
            self._kept = summary

    def finish(self) -> None:
        """Use all times, or none."""
        if not self.timed:
            for step in self.steps:
                for call in step.calls:
                    call.latency_s = 0.0
