"""Claude Code sessions: `~/.claude/projects/<slug>/<session>.jsonl`, one event a line (FORMATS.md).

One model call is spread over several lines that share `message.id`; early lines hold partial usage, so the
last one counts. The prompt is input + cache creation + cache read. Thinking is recorded without its text.
Sub-agents are lines with `isSidechain`, in the same file; a file of sidechain lines only is a task of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.base import Format, Node, Notes, SourceFile
from sqsim.trace.formats.openai_chat import content_text
from sqsim.trace.formats.transcript import Invocation, Step, Transcript, transcript_task
from sqsim.trace.schema import Outcome, Parent, Spawn, Task

_EVENTS = {"user", "assistant"}
_AGENT_TOOLS = {"Task", "Agent"}
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class ClaudeCode(Format):
    """One task a session, and one a sub-agent."""

    name = "claude_code"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not all(isinstance(value, dict) and isinstance(value.get("type"), str) for value in head):
            return None
        events = [
            value
            for value in head
            if value["type"] in _EVENTS and "sessionId" in value and isinstance(value.get("message"), dict)
        ]
        if not events:
            return None
        return f"{len(events)} of the first {len(head)} lines are user or assistant events with sessionId and message"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        main = _Chain(notes)
        sides: dict[str, _Chain] = {}
        roots: dict[str, str] = {}  # a sidechain event's uuid -> the name of its sub-agent
        session = version = ""
        for event in file.nodes():
            if event.optional_text("type") not in {*_EVENTS, "system"}:
                continue
            if event.get("isSidechain") is True:
                name = _agent_of(event, roots, len(sides))
                sides.setdefault(name, _Chain(notes)).read(event)
            else:
                main.read(event)
            session = session or event.optional_text("sessionId")
            version = version or event.optional_text("version")
        session = session or file.stem
        if not main.steps:
            if sides:
                notes["sub-agents without their parent's session are tasks of their own"] += len(sides)
            for name, side in sides.items():
                yield from side.task(file, f"{session}/{name}", version, None)
            return
        spawns = {name: main.spawned(name, side) for name, side in sides.items()}
        for root in main.task(file, session, version, None):
            yield root
            for name, side in sides.items():
                turn = spawns[name]
                if turn is None or turn >= len(root.turns):
                    notes["a sub-agent that no call of its session started was left out"] += 1
                else:
                    yield from side.task(file, f"{session}/{name}", version, (session, turn))


def _agent_of(event: Node, roots: dict[str, str], known: int) -> str:
    """The sub-agent of a sidechain event: its `agentId`, or the one its chain of `parentUuid` began with."""
    begun = roots.get(event.optional_text("parentUuid"))
    name = event.optional_text("agentId") or begun or f"agent-{known}"
    roots[event.optional_text("uuid")] = name
    return name


@dataclass
class _Use:
    """A tool use: its call, the turn it belongs to, and when it was made and answered (seconds)."""

    call: Invocation
    turn: int
    made_s: float
    prompt: str | None  # what a sub-agent was asked
    answered_s: float | None = None
    agent: str | None = None  # the sub-agent that answered

    def overlaps(self, other: _Use) -> bool:
        """Whether both ran at one time."""
        if self is other or self.answered_s is None or other.answered_s is None:
            return False
        return self.made_s < other.answered_s and other.made_s < self.answered_s


class _Chain:
    """The events of one agent in file order, read into steps."""

    def __init__(self, notes: Notes) -> None:
        self.steps: list[Step] = []
        self.question = ""
        self.started_s: float | None = None
        self.ended_s = 0.0
        self._notes = notes
        self._by_message: dict[str, int] = {}  # message id -> index of its step
        self._uses: dict[str, _Use] = {}
        self._cached: int | None = None
        self._model = ""
        self._compacted = False
        self._summary = ""

    def read(self, event: Node) -> None:
        kind = event.text("type")
        if kind == "system":
            self._compacted |= event.get("subtype") == "compact_boundary"
            return
        now_s = _time_s(event)
        if kind == "assistant":
            self._assistant(event.node("message"), event, now_s)
        else:
            self._user(event, now_s)
        if self.started_s is None:
            self.started_s = now_s
        self.ended_s = max(self.ended_s, now_s)

    def _assistant(self, message: Node, event: Node, now_s: float) -> None:
        if message.get("model") == "<synthetic>" or event.get("isApiErrorMessage") is True:
            self._notes["an error message of the client was left out"] += 1
            return
        self._model = self._model or message.optional_text("model")
        name = message.optional_text("id") or event.text("uuid")
        if name not in self._by_message:
            step = Step(restarted=self._compacted and bool(self.steps), kept=self._summary)
            self._compacted, self._summary = False, ""
            self._by_message[name] = len(self.steps)
            self.steps.append(step)
        index = self._by_message[name]
        step = self.steps[index]
        for block in message.nodes("content") if isinstance(message.get("content"), list) else ():
            kind = block.text("type")
            if kind in {"thinking", "redacted_thinking"}:
                step.thinks = True
                step.reasoning += block.optional_text("thinking")
            elif kind == "text":
                step.text += block.text("text")
            elif kind == "tool_use":
                self._call(index, block, now_s)
        if isinstance(message.get("content"), str):
            step.text += message.text("content")
        if isinstance(message.get("usage"), dict):
            usage = message.node("usage")
            parts = [usage.count(key) if usage.get(key) is not None else 0 for key in _USAGE]
            if self._cached is None:
                self._cached = parts[-1]
            step.prompt = sum(parts)
            step.output = max(step.output or 0, usage.count("output_tokens"))

    def _call(self, index: int, block: Node, now_s: float) -> None:
        tool, given = block.text("name"), block.get("input")
        call = Invocation(tool, f"{tool}({json.dumps(given, ensure_ascii=False)})", given)
        self.steps[index].calls.append(call)
        asked = str(given.get("prompt")) if tool in _AGENT_TOOLS and isinstance(given, dict) else None
        self._uses[block.text("id")] = _Use(call, index, now_s, asked)

    def _user(self, event: Node, now_s: float) -> None:
        message = event.node("message")
        content = message.get("content")
        said = content if isinstance(content, str) else ""
        for block in message.nodes("content") if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                self._result(event, block, now_s)
            elif block.get("type") == "text":
                said += block.text("text")
        if event.get("isCompactSummary") is True:
            self._compacted, self._summary = True, said
        elif said and self.steps:
            last = self.steps[-1]
            last.user = f"{last.user}\n{said}".strip()
            last.user_wait_s += max(0.0, round(now_s - self.ended_s, 3))
        elif said:
            self.question = f"{self.question}\n{said}".strip()

    def _result(self, event: Node, block: Node, now_s: float) -> None:
        name = block.text("tool_use_id")
        if name not in self._uses:
            raise block.wrong(f"no tool_use before it has the id {name!r}", "tool_use_id", "is the file cut?")
        use = self._uses[name]
        use.answered_s = now_s
        use.call.response = content_text(block)
        use.call.latency_s = max(0.0, round(now_s - use.made_s, 3))
        if block.get("is_error") is True:
            use.call.error = use.call.response.strip().split("\n", 1)[0][:200] or "error"
        if isinstance(event.get("toolUseResult"), dict):
            use.agent = event.node("toolUseResult").optional_text("agentId") or None

    def spawned(self, name: str, side: _Chain) -> int | None:
        """The turn whose call ran a sub-agent; that call then waits only for what came behind the sub-agent."""
        asked = [use for use in self._uses.values() if use.prompt is not None]
        by_name = [use for use in asked if use.agent == name]
        by_prompt = [use for use in asked if use.prompt == side.question]
        started_s = side.started_s or 0.0
        by_time = [use for use in asked if use.made_s <= started_s <= (use.answered_s or started_s)]
        use = next(iter(by_name or by_prompt or by_time), None)
        if use is None:
            return None
        if use.answered_s is not None:
            use.call.latency_s = max(0.0, round(use.answered_s - max(use.made_s, side.ended_s), 3))
        return use.turn

    def task(self, file: SourceFile, name: str, version: str, parent: tuple[str, int] | None) -> Iterator[Task]:
        """The chain's task; none if it holds no model call."""
        if not self.steps:
            self._notes["a session without an assistant message was left out"] += 1
            return
        uses = list(self._uses.values())
        for use in uses:
            use.call.parallel = any(use.overlaps(other) for other in uses if other.turn == use.turn)
        for step in self.steps:
            self._whole_usage(step)
        answered = not self.steps[-1].calls
        script = Transcript(
            task_id=name,
            source=file.source(ClaudeCode.name),
            prefix="",
            question=self.question,
            steps=self.steps,
            timing="recorded",
            model=self._model or None,
            # Tokens that were in the server's cache before the session's first call are what sessions share.
            prefix_id=f"{version}:{self._model}:{self._cached}" if self._cached else name,
            prefix_tokens=self._cached or None,
            outcome=Outcome(finish="answer" if answered else "unknown"),
            parent=None if parent is None else Parent(task_id=parent[0], turn=parent[1]),
            spawn=None if parent is None else Spawn(turn=parent[1], join_turn=parent[1] + 1),
        )
        yield transcript_task(script, self._notes)

    def _whole_usage(self, step: Step) -> None:
        """Some versions record an output's usage before it is complete: far fewer tokens than its text has."""
        visible = estimate_tokens(step.text) + sum(estimate_tokens(call.text) for call in step.calls)
        if step.output is not None and 2 * step.output < visible:
            self._notes["a recorded output is shorter than its own text (partial usage); estimated"] += 1
            step.output = visible


def _time_s(event: Node) -> float:
    text = event.text("timestamp")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise event.wrong(
            f"{text!r} is not a time", "timestamp", "give ISO 8601, as in 2026-06-01T05:40:20.151Z"
        ) from None
