# SPDX-License-Identifier: Apache-2.0
"""Make the transcript of a thread of logged calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqsim.trace.estimate import estimate_tokens
from sqsim.trace.formats.base import Node, shared_out
from sqsim.trace.formats.content import Said, said
from sqsim.trace.formats.messages import Reader, joined
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange
from sqsim.trace.formats.request_log.threads import Thread
from sqsim.trace.formats.request_log.tool_runs import Found, ToolRuns
from sqsim.trace.formats.steps import MARKUP_TOKENS, Invocation, Step, Transcript
from sqsim.trace.schema import Outcome


class Told(NamedTuple):
    """Transcript of a thread, the call of each of its steps, and the step of each tool run by its span's id."""

    script: Transcript
    calls: list[Exchange]
    ran_at: dict[str, int]


def told(
    thread: Thread, task_id: str, format_name: str, begins_s: float, runs: ToolRuns, notes: Notes
) -> Told | None:
    """Make the transcript of a thread; None if none of its calls has an answer or a count."""
    teller = _Teller(thread, runs, notes)
    teller.tell()
    steps = teller.reader.steps
    if not steps:
        return None
    first = thread.calls[0]
    _shared_growth(steps, teller.textless)
    timed = all(call.begins_s is not None and call.ends_s is not None for call in teller.calls)
    script = Transcript(
        task_id=task_id,
        source=first.file.source(format_name),
        prefix=teller.reader.system,
        question=teller.reader.question,
        question_other_tokens=teller.reader.question_other_tokens,
        steps=steps,
        timing="recorded" if timed else "absent",
        text="absent" if all(step.counts_only for step in steps) else "recorded",
        model=next((call.model for call in teller.calls if call.model), None),
        outcome=Outcome(finish="unknown" if steps[-1].calls else "answer"),
        arrival_s=round(first.begins_s - begins_s, 3) if first.begins_s is not None else None,
    )
    return Told(script, teller.calls, teller.ran_at)


class _Teller:
    """Reader of a thread's calls, one step a call."""

    def __init__(self, thread: Thread, runs: ToolRuns, notes: Notes) -> None:
        self.thread, self.runs, self.notes = thread, runs, notes
        self.reader = Reader(notes, next((call.tools for call in thread.calls if call.tools), ""))
        self.calls: list[Exchange] = []
        self.ran_at: dict[str, int] = {}
        self.textless: list[list[Invocation]] = []

    def tell(self) -> None:
        """Read all calls. Raises `TraceError`."""
        read = self._begin()
        calls = self.thread.calls
        for index, call in enumerate(calls):
            following = calls[index + 1] if index + 1 < len(calls) else None
            said_next = next((later for later in calls[index + 1 :] if later.messages), None)
            if call.messages:
                read = len(call.prints)
            goes_on = said_next is not None and not said_next.restarts
            repeated = goes_on and said_next is not None and len(said_next.messages) > read
            response = call.response
            if repeated and said_next is not None and said_next.messages[read].get("role") == "assistant":
                response = response or said_next.messages[read]
                read += 1
            if response is None and (call.usage is None or call.messages):
                if call.usage is None or (following is None and not call.messages):
                    self.notes["a last request without a response was left out"] += 1
                    continue
                self.notes["a call whose answer was not recorded has its token counts only"] += 1
            step = self._step(call, response)
            found = self._called(step, call, following)
            if repeated and said_next is not None:
                read = self._heard(said_next, read, last=said_next is following)
            self._timed(step, call, following, found)

    def _begin(self) -> int:
        """Read the first prompt; return its number of messages."""
        first = self.thread.calls[0]
        for message in first.messages:
            role = message.text("role")
            if role in {"system", "developer", "user"}:
                self.reader.hears(message, system=role != "user")
            else:
                self.notes[
                    "a message of a model or tool before the first logged request is part of the question"
                ] += 1
                self.reader.heard(_told(message, self.notes))
        return len(first.prints)

    def _step(self, call: Exchange, response: Node | None) -> Step:
        before = self.reader.steps
        number = len(before)
        if response is None:
            step = Step(counts_only=True)
            before.append(step)
            if not call.messages:
                self.notes["a call was recorded with its token counts only, without text"] += 1
        else:
            self.reader.says(response)
            step = before[-1]
        assert len(before) == number + 1, "an answer to a prompt is a step of its own"
        if call.usage is not None:
            step.prompt, step.output, step.reasoning_tokens = call.usage
            thought = before[number - 1].reasoning_tokens if number else None
            step.forgets = thought or 0
        else:
            step.prompt = step.output = None
        if call.restarts and number:
            self.notes[
                "a prompt of an agent replaces the one before it (compaction): the context restarts"
            ] += 1
            step.restarted = True
            step.kept = joined(*(_told(node, self.notes).text for node in call.messages[1:]))
        self.calls.append(call)
        return step

    def _heard(self, following: Exchange, read: int, *, last: bool) -> int:
        """Read what entered the context after an answer; up to the next answer if more calls come in between."""
        while read < len(following.messages):
            message = following.messages[read]
            if message.get("role") == "assistant":
                if not last:
                    break
                self.notes["a model's message that no request was logged for counts as a user's text"] += 1
                self.reader.heard(_told(message, self.notes))
            else:
                self.reader.read(message)
            read += 1
        return read

    def _called(self, step: Step, call: Exchange, following: Exchange | None) -> Found:
        """Find the runs of a step's calls; runs that no recorded answer names are calls of the answer before them."""
        until_s = following.begins_s if following is not None else None
        found = self.runs.of(step.calls, call, until_s)
        if step.calls or (following is None and call.response is not None):
            return found
        for run in self.runs.between(call, until_s):
            self.notes[
                "a tool's run that no recorded answer names is taken for a call of the answer before it"
            ] += 1
            self.reader.call(step, run.tool, run.arguments, run.call_id)
            if run.arguments is None:
                step.calls[-1].text = ""
            found.append((step.calls[-1], run))
        return found

    def _timed(self, step: Step, call: Exchange, following: Exchange | None, found: Found) -> None:
        """Give a step's calls the results and times of their runs, and the waits between the two requests."""
        textless = []
        for invocation, run in found:
            self.ran_at[run.name] = len(self.reader.steps) - 1
            if invocation.response is None and run.response is not None:
                invocation.response = run.response
            invocation.error = invocation.error or run.error
        # The prompts that would show the results were not recorded; the counts tell their size.
        silent = following is not None and not following.messages
        for invocation in step.calls:
            if invocation.response is None and (silent or any(each is invocation for each, _ in found)):
                invocation.response = ""
                textless.append(invocation)
        self.textless.append(textless)
        self.runs.waits(step, call, following, found)


def _shared_growth(steps: Sequence[Step], textless: Sequence[Sequence[Invocation]]) -> None:
    """Give calls without a recorded response what the next prompt grew by, in equal parts (a guess)."""
    for index, calls in enumerate(textless):
        if not calls or index + 1 == len(steps):
            continue
        step, following = steps[index], steps[index + 1]
        if step.prompt is None or step.output is None or following.prompt is None:
            continue
        known = sum(estimate_tokens(call.response or "") for call in step.calls) + estimate_tokens(step.user)
        markup = MARKUP_TOKENS * (len(step.calls) + bool(step.user) + 1)
        grown = following.prompt - step.prompt - step.output - known - markup
        for call, tokens in zip(calls, shared_out(max(0, grown), [1] * len(calls)), strict=True):
            call.other_tokens = tokens


def _told(message: Any, notes: Notes) -> Said:
    """Write a message as text, its calls included, where it is read neither as a call nor as a response."""
    text = said(message, notes)
    calls = message.get("tool_calls")
    return Said(f"{text.text}{calls or ''}", text.other_tokens)
