# SPDX-License-Identifier: Apache-2.0
"""Read the events of one agent, in file order, into steps."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.claude_code.lines import call_key, is_call, time_s
from sqsim.trace.formats.claude_code.rewinds import Places
from sqsim.trace.formats.content import part, said
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Invocation, Step

_AGENT_TOOLS = {"Task", "Agent"}
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(eq=False)
class Use:
    """Tool use: its call, its step, and the times of call and answer (seconds)."""

    call: Invocation
    step: Step
    made_s: float
    prompt: str | None  # what a sub-agent was asked
    answered_s: float | None = None
    agent: str | None = None  # the sub-agent that answered

    def overlaps(self, other: Use) -> bool:
        """Whether both ran at one time."""
        if self is other or self.answered_s is None or other.answered_s is None:
            return False
        return self.made_s < other.answered_s and other.made_s < self.answered_s


@dataclass(eq=False)
class Model:
    """Model call: its key, its step, the times of its request and first line, its place in the log's tree.

    `compacted`: a compaction came before it. `cached`: tokens of its prompt that the server had already.
    """

    key: tuple[str, str]
    step: Step
    asked_s: float
    begun_s: float
    place: int
    compacted: bool
    cached: int | None = None


@dataclass
class _Heard:
    """User message that no model call has read yet: its place, its text, and the wait before it."""

    place: int
    text: str
    other_tokens: int
    at_s: float
    wait_s: float


class Chain:
    """Context of one agent, read from its log."""

    def __init__(self, notes: Notes) -> None:
        self.models: list[Model] = []
        self.uses: list[Use] = []
        self.question = ""
        self.question_other_tokens = 0
        self.started_s: float | None = None
        self.ended_s = 0.0
        self.model = ""
        self._notes = notes
        self._places = Places()
        self._times: list[float] = []
        self._by_key: dict[tuple[str, str], Model] = {}
        self._answers: dict[str, Use] = {}  # tool use id -> the latest use of that id
        self._blocks: set[tuple[int, int]] = set()  # of each step, the hashes of the blocks that were read
        self._unread: list[_Heard] = []
        self._compacted = self._was_compacted = self._rewound = False
        self._summary = ""

    @property
    def steps(self) -> list[Step]:
        return [model.step for model in self.models]

    @property
    def cached(self) -> int | None:
        """Tokens that the server had in its cache before the first call."""
        return next((model.cached for model in self.models if model.cached is not None), None)

    def last_before(self, moment_s: float) -> float:
        """Find the time of the last event not after a moment."""
        return max((at_s for at_s in self._times if at_s <= moment_s), default=moment_s)

    def read(self, event: Node) -> None:
        """Read the next line of the log."""
        kind = event.optional_text("type")
        if kind not in {"user", "assistant"}:
            self._compacted |= kind == "system" and event.get("subtype") == "compact_boundary"
            self._places.passed(event)
            return
        message = event.node("message")
        now_s = time_s(event)
        if kind == "assistant":
            self._assistant(message, event, now_s)
        else:
            self._user(message, event, now_s)
        if self.started_s is None:
            self.started_s = now_s
        self.ended_s = max(self.ended_s, now_s)
        self._times.append(now_s)

    def finish(self) -> None:
        """End the log: messages that no call has read stay with the last step."""
        self._flush()

    def _assistant(self, message: Node, event: Node, now_s: float) -> None:
        if not is_call(event):
            self._notes["an error message of the client was left out"] += 1
            self._places.passed(event)
            return
        self.model = self.model or message.optional_text("model")
        key = call_key(event)
        found = self._by_key.get(key)
        if found is None:
            self._fork(event)
            asked_s = min((heard.at_s for heard in self._unread), default=now_s)
            step = self._begun()
            found = Model(key, step, asked_s, now_s, self._places.begins(event), self._was_compacted)
            self._by_key[key] = found
            self.models.append(found)
        else:
            self._places.stands(event, found.place)
        content = message.get("content")
        lines: set[tuple[int, int]] = set()
        for block in message.nodes("content") if isinstance(content, list) else ():
            written = (found.place, hash(json.dumps(block.value, sort_keys=True)))
            if written not in self._blocks:  # some writers repeat what earlier lines of a message hold
                self._block(found.step, block, now_s)
                lines.add(written)
        self._blocks |= lines
        if isinstance(content, str):
            found.step.text += content
        if isinstance(message.get("usage"), dict):
            self._usage(found, message.node("usage"))

    def _begun(self) -> Step:
        """Begin a step after the unread messages; it restarts the context after a compaction or a rewind."""
        self._was_compacted = self._compacted and bool(self.models)
        step = Step(restarted=bool(self.models) and (self._compacted or self._rewound))
        if step.restarted:
            step.kept = "\n".join(
                text for text in (self._summary, *(heard.text for heard in self._unread)) if text
            )
            self._waited(sum(heard.wait_s for heard in self._unread))
            self._unread = []
        elif self._summary:  # the file begins after a compaction
            self.question = self._summary
        self._flush()
        self._compacted = self._rewound = False
        self._summary = ""
        return step

    def _flush(self) -> None:
        """Move the unread messages into the context after the last step, or into the question."""
        texts = [heard.text for heard in self._unread if heard.text]
        others = sum(heard.other_tokens for heard in self._unread)
        if self.models:
            last = self.models[-1].step
            last.user = "\n".join([last.user, *texts] if last.user else texts)
            last.user_other_tokens += others
            self._waited(sum(heard.wait_s for heard in self._unread))
        else:
            self.question = "\n".join([self.question, *texts] if self.question else texts)
            self.question_other_tokens += others
        self._unread = []

    def _waited(self, wait_s: float) -> None:
        if self.models:
            last = self.models[-1].step
            last.user_wait_s = round(last.user_wait_s + wait_s, 3)

    def _fork(self, event: Node) -> None:
        """Leave out what came since the event's parent, where the log has passed that parent."""
        place = self._places.forks_at(event)
        if place is None or self._compacted:
            return
        unread = [heard for heard in self._unread if heard.place > place]
        self._unread = [heard for heard in self._unread if heard.place <= place]
        if unread:
            self._notes["a message that a user took back before it was answered was left out"] += len(unread)
        if self.models and self.models[-1].place > place:
            self._notes[
                "a user went back (parentUuid): the context restarts behind what both branches share"
            ] += 1
            self._rewound = True

    def _block(self, step: Step, block: Node, now_s: float) -> None:
        kind = block.text("type")
        if kind in {"thinking", "redacted_thinking"}:
            step.thinks = True
            step.reasoning += block.optional_text("thinking")
        elif kind == "text":
            step.text += block.text("text")
        elif kind == "tool_use":
            self._call(step, block, now_s)
        else:
            step.text += part(block.value, self._notes).text

    def _call(self, step: Step, block: Node, now_s: float) -> None:
        tool, given = block.text("name"), block.get("input")
        call = Invocation(tool, f"{tool}({json.dumps(given, ensure_ascii=False)})", given)
        asked = str(given.get("prompt")) if tool in _AGENT_TOOLS and isinstance(given, dict) else None
        use = Use(call, step, now_s, asked)
        step.calls.append(call)
        self.uses.append(use)
        self._answers[block.text("id")] = use

    def _usage(self, model: Model, usage: Node) -> None:
        parts = [usage.count(key) if usage.get(key) is not None else 0 for key in _USAGE]
        step = model.step
        if model.cached is None:
            model.cached = parts[-1]
        if sum(parts):  # some proxies write zeros
            step.prompt = sum(parts)
        if usage.get("output_tokens") is not None:
            step.output = max(step.output or 0, usage.count("output_tokens"))

    def _user(self, message: Node, event: Node, now_s: float) -> None:
        content = message.get("content")
        text, other_tokens = "", 0
        answered: Model | None = None
        for block in message.nodes("content") if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                use = self._result(event, block, now_s)
                if use is None:
                    orphan = said(block, self._notes)
                    text, other_tokens = f"{text}{orphan.text}", other_tokens + orphan.other_tokens
                else:
                    answered = next((model for model in self.models if model.step is use.step), None)
            else:
                told = part(block.value, self._notes)
                text, other_tokens = f"{text}{told.text}", other_tokens + told.other_tokens
        if content is not None and not isinstance(content, list):
            text = said(message, self._notes).text
        if event.get("isCompactSummary") is True:
            self._compacted, self._summary = True, text
            self._places.begins(event)
            return
        if answered is not None:
            place = self._places.follows(event, answered.place)
        else:
            self._fork(event)
            place = self._places.begins(event)
        if text or other_tokens:
            wait_s = max(0.0, now_s - self.ended_s) if self.started_s is not None and answered is None else 0.0
            self._unread.append(_Heard(place, text, other_tokens, now_s, wait_s))

    def _result(self, event: Node, block: Node, now_s: float) -> Use | None:
        """Return the use that a tool result answers; None if its call is not in the file."""
        use = self._answers.get(block.text("tool_use_id"))
        if use is None:
            self._notes["a tool result whose call is not in the file counts as a user's text"] += 1
            return None
        use.answered_s = now_s
        response = said(block, self._notes)
        use.call.response, use.call.other_tokens = response
        use.call.latency_s = max(0.0, round(now_s - use.made_s, 3))
        if block.get("is_error") is True:
            use.call.error = response.text.strip().split("\n", 1)[0][:200] or "error"
        if isinstance(event.get("toolUseResult"), dict):
            use.agent = event.node("toolUseResult").optional_text("agentId") or None
        return use
