# SPDX-License-Identifier: Apache-2.0
"""Read the lines of one rollout into model calls."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqsim.trace.formats.base import Node
from sqsim.trace.formats.codex.outputs import output
from sqsim.trace.formats.codex.usage import Counter, Usage
from sqsim.trace.formats.content import said
from sqsim.trace.formats.messages import joined
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.steps import Invocation, Step

_CALLS = {"function_call", "custom_tool_call", "local_shell_call", "tool_search_call"}
_OUTPUTS = {"function_call_output", "custom_tool_call_output", "tool_search_output"}
_ON_SERVER = {"web_search_call", "image_generation_call"}
_NOT_SENT = {"ghost_snapshot", "compaction", "compaction_summary", "context_compaction"}
_SILENT = {"event_msg", "session_meta", "turn_context", "token_usage_record"}


@dataclass(eq=False)
class Use:
    """Tool call of a step: its times of call and answer (seconds), and its output."""

    call: Invocation
    step: Step
    made_s: float
    answered_s: float | None = None

    def overlaps(self, other: Use) -> bool:
        """Whether both ran at one time."""
        if self is other or self.answered_s is None or other.answered_s is None:
            return False
        return self.made_s < other.answered_s and other.made_s < self.answered_s


@dataclass(eq=False)
class Model:
    """Model call: its step, the time of its first item, and its usage."""

    step: Step
    begun_s: float
    usage: Usage | None = None


@dataclass
class Rollout:
    """History of one thread. `counted`: it has token counts; `leads`: each comes before its call's items."""

    notes: Notes
    counted: bool
    leads: bool
    models: list[Model] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    instructions: str = ""
    question: str = ""
    question_other_tokens: int = 0
    model: str = ""
    version: str = ""
    timed: bool = True
    ended_s: float = 0.0
    _counter: Counter = field(default_factory=Counter)
    _current: Model | None = None
    _pending: Usage | None = None
    _heard: bool = False
    _open: dict[str, Use] = field(default_factory=dict)
    _restarts: bool = False
    _kept: str = ""
    _began: bool = False
    _forgets: int = 0  # reasoning tokens that the next prompt may lack
    _thoughts: int = 0  # the first call whose reasoning is still in the prompt

    def read(self, line: Node) -> None:
        """Read the next line. Raises `TraceError`."""
        kind, payload = line.text("type"), line.node("payload")
        now_s = time_s(line)
        self.timed &= now_s is not None
        now_s = self.ended_s if now_s is None else now_s
        if kind == "session_meta":
            self._meta(payload)
        elif kind == "turn_context":
            self.model = self.model or payload.optional_text("model")
        elif kind == "response_item":
            self._item(payload, now_s)
            self.ended_s = max(self.ended_s, now_s)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._count(payload, now_s)
            self.ended_s = max(self.ended_s, now_s)
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            self.notes["a user went back (thread_rolled_back): the context restarts"] += 1
            self._restart("")
        elif kind == "compacted":
            self._restart(self._replacement(payload))
        elif kind not in _SILENT:
            self.notes[f"a line of type {kind[:40]} is no part of a conversation; left out"] += 1

    def finish(self) -> None:
        """End the log: calls that ran at one time are marked as parallel."""
        if self._pending is not None:
            self._alone(self._pending, self.ended_s)
            self._pending = None
        for _, beside in groupby(self.uses, key=lambda use: id(use.step)):
            uses = list(beside)
            for use in uses:
                use.call.parallel = any(use.overlaps(other) for other in uses)

    def _meta(self, payload: Node) -> None:
        """Read the metadata: the first describes the thread; a forked rollout repeats its parent's after it."""
        if self._began:
            return
        self._began = True
        self.version = payload.optional_text("cli_version")
        if isinstance(payload.get("base_instructions"), dict):
            self.instructions = payload.node("base_instructions").optional_text("text")

    def _restart(self, kept: str) -> None:
        """Restart the context with the text that a compaction kept; a log may begin so."""
        self._current = None
        if self._pending is not None:
            self._alone(self._pending, self.ended_s)
            self._pending = None
        if self.models:
            self._restarts, self._kept = True, kept
        else:
            self.question = joined(self.question, kept)

    def _replacement(self, payload: Node) -> str:
        """Return the text that a compaction kept: the messages of the new history, or its summary."""
        if not isinstance(payload.get("replacement_history"), list):
            return payload.optional_text("message")
        items = payload.nodes("replacement_history")
        texts = [said(item, self.notes).text for item in items if item.get("type") == "message"]
        return joined(*texts) or payload.optional_text("message")

    def _begin(self, now_s: float) -> Model:
        """Return the call of the model's next item; a new one if the previous call has ended."""
        over = self._heard and not self.counted
        if self._current is None or over:
            kept = self._kept if self._restarts else ""
            step = Step(restarted=self._restarts, kept=kept, forgets=self._forgets)
            self._current = Model(step, now_s)
            self.models.append(self._current)
            self._restarts, self._kept, self._forgets = False, "", 0
            if self._pending is not None:
                self._used(self._current, self._pending)
                self._pending = None
        self._heard = False
        return self._current

    def _used(self, model: Model, usage: Usage) -> None:
        model.usage = usage
        model.step.prompt, model.step.output = usage.prompt, usage.output
        model.step.reasoning_tokens = usage.reasoning

    def _count(self, event: Node, now_s: float) -> None:
        """Assign usage to the previous call or to the next one; without items it is a call of its own."""
        usage = self._counter.read(event)
        if usage is None:
            return
        last = self.models[-1] if self.models else None
        if self.leads:
            waiting, self._pending, self._current = self._pending, usage, None
            if waiting is not None:
                self._alone(waiting, now_s)
        elif last is not None and last.usage is None:
            self._used(last, usage)
            self._current = None
        else:
            self._alone(usage, now_s)

    def _alone(self, usage: Usage, now_s: float) -> None:
        self.notes[
            "a model call without items in the log (as a compaction's own) has its recorded counts only"
        ] += 1
        pending, self._pending, self._current = self._pending, None, None
        self._used(self._begin(now_s), usage)
        self._current, self._pending = None, pending

    def _item(self, item: Node, now_s: float) -> None:
        kind = item.text("type")
        if kind == "message" and item.text("role") != "assistant":
            self._hears(item, now_s)
        elif kind == "message":
            step = self._begin(now_s).step
            step.text = joined(step.text, said(item, self.notes).text)
        elif kind == "reasoning":
            step = self._begin(now_s).step
            step.thinks = True
            texts = [said(item, self.notes, key).text for key in ("summary", "content")]
            step.reasoning = joined(step.reasoning, *texts)
        elif kind in _CALLS:
            self._call(kind, item, now_s)
        elif kind in _OUTPUTS:
            self._answer(item, now_s)
        elif kind in _ON_SERVER:
            self.notes[
                f"a {kind} ran on the server: what it gave is in no line and counts with the output"
            ] += 1
            step = self._begin(now_s).step
            step.text = joined(step.text, json.dumps(item.get("action"), ensure_ascii=False))
        elif kind not in _NOT_SENT:
            self.notes[f"a response item of unknown type {kind[:40]} counts as its JSON text"] += 1
            step = self._begin(now_s).step
            step.text = joined(step.text, json.dumps(item.value, ensure_ascii=False))

    def _hears(self, message: Node, now_s: float) -> None:
        """Read a message not from the model: it ends the call before it, and waits for the next one."""
        told = said(message, self.notes)
        self._current = None
        if self._restarts:
            self._kept = joined(self._kept, told.text)
        elif self.models:
            last = self.models[-1].step
            last.user = joined(last.user, told.text)
            last.user_other_tokens += told.other_tokens
        else:
            self.question = joined(self.question, told.text)
            self.question_other_tokens += told.other_tokens
        if self.models and all(call.response is not None for call in self.models[-1].step.calls):
            last = self.models[-1].step
            last.user_wait_s = round(last.user_wait_s + max(0.0, now_s - self.ended_s), 3)
        if message.get("role") == "user":
            self._forgets += sum(model.step.reasoning_tokens or 0 for model in self.models[self._thoughts :])
            self._thoughts = len(self.models)

    def _call(self, kind: str, item: Node, now_s: float) -> None:
        model = self._begin(now_s)
        if kind in {"local_shell_call", "tool_search_call"}:
            tool, given = kind, item.get("action" if kind == "local_shell_call" else "arguments")
        else:
            tool, given = item.text("name"), item.get("input" if kind == "custom_tool_call" else "arguments")
        written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        call = Invocation(tool, f"{tool}({written})", _parsed(given))
        use = Use(call, model.step, now_s)
        model.step.calls.append(call)
        self.uses.append(use)
        self._open[item.optional_text("call_id") or item.optional_text("id")] = use

    def _answer(self, item: Node, now_s: float) -> None:
        use = self._open.pop(item.optional_text("call_id"), None)
        found = output(item, self.notes)
        if use is None:
            self.notes["a tool output whose call is not in the log counts as a user's text"] += 1
            if self.models:
                last = self.models[-1].step
                last.user = joined(last.user, found.told.text)
                last.user_other_tokens += found.told.other_tokens
            else:
                self.question = joined(self.question, found.told.text)
            return
        self._heard = True
        use.answered_s = now_s
        use.call.response, use.call.other_tokens = found.told
        use.call.latency_s = round(max(0.0, now_s - use.made_s, found.wall_s), 3)
        use.call.error = found.error


def time_s(line: Node) -> float | None:
    """Return a line's time in seconds since 1970; None if it has none. Raises `TraceError`."""
    if line.get("timestamp") is None:
        return None
    text = line.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise line.wrong(
            f"{text!r} is not a time", "timestamp", "give ISO 8601, as in 2026-06-01T05:40:20.151Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parsed(arguments: Any) -> Any:
    """Parse arguments into an object where they are one; a custom tool's input is free text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
