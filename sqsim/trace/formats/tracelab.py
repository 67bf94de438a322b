# SPDX-License-Identifier: Apache-2.0
"""Import TraceLab's rounds, one model call a line: token counts, tools by name, and the times of events; no text.

Source: uw-syfi/TraceLab. A tool's result is in the next round's `timing_events`. An output and what followed it are
divided among calls and responses by their characters.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Format, Node, SourceFile, shared_out
from sqsim.trace.formats.counts import appended, at_least_one
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.trajectories import is_list_of, moment_s
from sqsim.trace.schema import Answer, Call, Carries, Outcome, Prefix, Question, Reset, Task, Turn

_KEYS = ("provider", "session_id", "round_index", "input_tokens_total", "output_tokens")


class TraceLab(Format):
    """TraceLab: one task a session."""

    name = "tracelab"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if not is_list_of(list(head), *_KEYS):
            return None
        return f"{len(head)} lines with provider, session_id, round_index and token counts"

    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        sessions: defaultdict[str, list[_Round]] = defaultdict(list)
        seen: set[tuple[str, int]] = set()
        for line in file.nodes():
            name, number = line.text("session_id"), line.count("round_index")
            if (name, number) in seen:
                notes["a round that was read before was left out"] += 1
                continue
            seen.add((name, number))
            sessions[name].append(_Round(line, number, notes))
        begun = [rounds[0].begun_s for rounds in sessions.values()]
        stated = [each for each in begun if each is not None]
        first_s = min(stated) if stated and len(stated) == len(begun) else None
        for name, rounds in sessions.items():
            rounds.sort(key=lambda each: each.number)
            yield _task(file, name or file.stem, rounds, first_s, notes)


class _Round:
    """One line: counts, tools, and the times (seconds since 1970) of its input and its output."""

    def __init__(self, line: Node, number: int, notes: Notes) -> None:
        self.number = number
        self.prompt = at_least_one(line.count("input_tokens_total"), "a prompt", notes)
        self.output = at_least_one(line.count("output_tokens"), "an output", notes)
        hidden = line.count("reasoning_output_tokens") if line.get("reasoning_output_tokens") is not None else 0
        self.reasoning = min(hidden, self.output)
        self.model = line.optional_text("model")
        self.tools = line.nodes("tools") if line.get("tools") else []
        self.text_chars = 0
        self.begun_s: float | None = None
        self.user_s: float | None = None
        self.ended_s: float | None = None
        for event in line.nodes("timing_events") if line.get("timing_events") else []:
            now_s, kind = moment_s(event, "timestamp"), event.get("event_type")
            self.begun_s = now_s if self.begun_s is None else self.begun_s
            if kind == "user_message":
                self.user_s = now_s
            elif kind != "tool_result":
                self.ended_s = now_s
            if kind == "text" and event.get("content_chars") is not None:
                self.text_chars += event.count("content_chars")

    def waits_s(self) -> list[float | None]:
        """Return each tool's latency: stated, or from its two times."""
        waits: list[float | None] = []
        for tool in self.tools:
            if tool.get("tool_wall_latency_ms") is not None:
                waits.append(round(tool.seconds("tool_wall_latency_ms", 1e-3), 3))
                continue
            sent, back = moment_s(tool, "emitted_at"), moment_s(tool, "result_at")
            waits.append(None if sent is None or back is None else round(max(0.0, back - sent), 3))
        return waits


def _task(file: SourceFile, name: str, rounds: Sequence[_Round], first_s: float | None, notes: Notes) -> Task:
    notes.usage["recorded"] += len(rounds)
    restarts = [False, *(now.prompt < before.prompt for before, now in itertools.pairwise(rounds))]
    starts = [0, *(n for n, restarted in enumerate(restarts) if restarted), len(rounds)]
    grown: list[int] = []
    for start, stop in itertools.pairwise(starts):
        part = rounds[start:stop]
        grown += [*appended([each.prompt for each in part], [each.output for each in part], notes), 0]
    if len(starts) > 2:
        notes["a prompt is shorter than the one before it (compaction): the context restarts"] += (
            len(starts) - 2
        )
    timed = all(wait is not None for each in rounds for wait in each.waits_s())
    turns: list[Turn] = []
    cursor = 0
    for number, each in enumerate(rounds):
        following = rounds[number + 1] if number + 1 < len(rounds) else None
        turn = _turn(each, following, grown[number], cursor, restarts[number], timed)
        cursor += sum(call.cursor is not None for call in turn.calls)
        turns.append(turn)
    answer = None
    if not turns[-1].calls and turns[-1].reset is None:
        last = turns.pop()
        answer = Answer(reasoning_tokens=last.reasoning_tokens, text_tokens=last.text_tokens)
    begun_s = rounds[0].begun_s
    return Task(
        task_id=name,
        source=file.source(TraceLab.name),
        model=rounds[0].model or None,
        carries=Carries(
            text="absent", timing="recorded" if timed else "absent", usage="recorded", references="absent"
        ),
        arrival_s=None if first_s is None or begun_s is None else round(max(0.0, begun_s - first_s), 3),
        prefix=Prefix(id=f"tracelab:{name}", tokens=0),
        question=Question(tokens=rounds[0].prompt),
        turns=tuple(turns),
        answer=answer,
        outcome=Outcome(finish="unknown" if answer is None else "answer"),
    )


def _turn(
    each: _Round, following: _Round | None, growth: int, cursor: int, restarted: bool, timed: bool
) -> Turn:
    written = [_chars(tool, "input_chars") for tool in each.tools]
    text, *calls = shared_out(each.output - each.reasoning, [each.text_chars, *written])
    responses = shared_out(growth, [_chars(tool, "result_chars") for tool in each.tools])
    # Without tools, all of the growth is what a user wrote.
    template = growth - sum(responses)
    wait_s = 0.0
    if timed and following is not None and following.user_s is not None and each.ended_s is not None:
        waits = [wait or 0.0 for wait in each.waits_s()]
        wait_s = round(max(0.0, following.user_s - each.ended_s - max(waits, default=0.0)), 3)
    made = []
    for tool, said, heard, latency_s in zip(each.tools, calls, responses, each.waits_s(), strict=True):
        failed = tool.get("is_error") is True
        made.append(
            Call(
                tool=tool.optional_text("tool_name") or "tool",
                call_tokens=said,
                cursor=None if failed else cursor,
                response_tokens=heard,
                latency_s=(latency_s or 0.0) if timed else 0.0,
                error="error" if failed else None,
                parallel=len(each.tools) > 1,
            )
        )
        cursor += not failed
    return Turn(
        reasoning_tokens=each.reasoning,
        text_tokens=text,
        calls=tuple(made),
        template_tokens=template,
        user_wait_s=wait_s,
        reset=Reset(keep_tokens=each.prompt) if restarted else None,
    )


def _chars(tool: Node, key: str) -> float:
    return float(tool.count(key)) if tool.get(key) is not None else 0.0
