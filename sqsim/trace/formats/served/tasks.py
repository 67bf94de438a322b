# SPDX-License-Identifier: Apache-2.0
"""Make each conversation of a server's recording a task, with the token ids of all that entered its context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqsim.trace.formats.base import SourceFile, shared_out
from sqsim.trace.formats.counts import REWRITTEN_SHARE, REWRITTEN_TOKENS
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.served.prefixes import prefix_id, shared_prefixes
from sqsim.trace.formats.served.request import Ids, Served, Tool, common, split
from sqsim.trace.formats.served.threads import Thread, threads
from sqsim.trace.schema import Answer, Call, Carries, Outcome, Prefix, Question, Reset, Source, Task, Turn


def served_tasks(
    requests: Sequence[Served], file: SourceFile, format_name: str, notes: Notes
) -> Iterator[Task]:
    """Yield a task for each conversation. The requests are those that ended, in the order of their arrival."""
    kept = list(_answered(requests, notes))
    begins = [call.begins_s for call in kept if call.begins_s is not None]
    begin_s = min(begins, default=0.0)
    talks = [_Talk(thread, *_growths(thread.calls, notes)) for thread in threads(kept, notes)]
    firsts = [talk.thread.calls[0].prompt.ids() for talk in talks]
    prefixes = shared_prefixes(firsts, [talk.shared for talk in talks])
    taken: set[str] = set()
    for talk, first, prefix in zip(talks, firsts, prefixes, strict=True):
        name = talk.thread.name
        while name in taken:
            name += "'"
        taken.add(name)
        yield _task(name, talk, first, prefix, begin_s, file.source(format_name), notes)
    _totals(kept, notes)


@dataclass(slots=True)
class _Growth:
    """What a prompt added to the request before it: exact ids, or a number of tokens; or a new context."""

    tokens: int = 0
    ids: Ids[int] | None = None
    context: Ids[int] | None = None


@dataclass(slots=True)
class _Talk:
    """Conversation, what each of its prompts added, and the tokens that all its contexts begin with."""

    thread: Thread
    grown: list[_Growth]
    shared: int


def _answered(requests: Sequence[Served], notes: Notes) -> Iterator[Served]:
    for call in requests:
        if not call.prompt.length or not call.output:
            what = "that was aborted or refused" if call.aborted else "without a prompt or an output token"
            notes[f"a request {what} before its first token was left out"] += 1
            continue
        if call.aborted:
            notes["a request was aborted; it counts with the tokens that it had generated"] += 1
        yield call


def _growths(calls: Sequence[Served], notes: Notes) -> tuple[list[_Growth], int]:
    grown: list[_Growth] = []
    prompt = calls[0].prompt.ids()
    first, shared, debt = prompt, len(prompt), 0
    for call, later in pairwise(calls):
        whole, following = prompt + call.output, later.prompt.ids()
        same = common(whole, following)
        lost = len(whole) - same
        if not lost and not debt:
            grown.append(_Growth(len(following) - same, following[same:]))
        elif len(following) < len(prompt) or len(prompt) - same > max(
            REWRITTEN_TOKENS, REWRITTEN_SHARE * len(prompt)
        ):
            notes["a prompt does not continue the one before it (compaction, drop): the context restarts"] += 1
            grown.append(_Growth(context=following))
            shared, debt = min(shared, common(first, following)), 0
        else:
            if lost:
                notes["a prompt holds the answer before it in other tokens; what follows has no token ids"] += 1
            change = len(following) - len(whole) - debt
            if change < 0:
                notes[
                    "a prompt grew by less than the output before it; the rest is taken from later steps"
                ] += 1
            debt = max(0, -change)
            grown.append(_Growth(max(0, change)))
        prompt = following
    return grown, shared


def _task(
    name: str, talk: _Talk, first: Ids[int], prefix: int, begin_s: float, source: Source, notes: Notes
) -> Task:
    calls = talk.thread.calls
    notes.usage["recorded"] += len(calls)
    turns: list[Turn] = []
    reset: Reset | None = None
    for index, growth in enumerate(talk.grown):
        turns.append(_turn(calls[index], calls[index + 1], growth, reset, turns, notes))
        reset = None
        if growth.context is not None:
            keep = growth.context[prefix:]
            if not keep:
                notes["a new context is shorter than the prefix that tasks share; it counts a token more"] += 1
            reset = Reset(keep_tokens=max(1, len(keep)), keep_token_ids=tuple(keep) or None)
    last = calls[-1]
    answer = None
    if reset is None:
        answer = Answer(reasoning_tokens=0, text_tokens=len(last.output), text_token_ids=tuple(last.output))
    else:  # only a turn can say that its context restarted
        turns.append(
            Turn(
                reasoning_tokens=0,
                text_tokens=len(last.output),
                text_token_ids=tuple(last.output),
                calls=(),
                reset=reset,
            )
        )
    timed = all(call.begins_s is not None and call.ends_s is not None for call in calls)
    return Task(
        task_id=name,
        source=source,
        model=calls[0].model,
        carries=Carries(timing="recorded" if timed else "absent", usage="recorded"),
        arrival_s=None if calls[0].begins_s is None else round(max(0.0, calls[0].begins_s - begin_s), 6),
        prefix=Prefix(
            id=prefix_id(first[:prefix]), tokens=prefix, token_ids=tuple(first[:prefix]) if prefix else None
        ),
        question=Question(tokens=len(first) - prefix, token_ids=tuple(first[prefix:])),
        turns=tuple(turns),
        answer=answer,
        outcome=Outcome(finish="unknown"),
    )


def _turn(
    call: Served,
    later: Served,
    growth: _Growth,
    reset: Reset | None,
    before: Sequence[Turn],
    notes: Notes,
) -> Turn:
    """Make a turn of an output and of what the next prompt added to it."""
    wait_s = 0.0
    if call.ends_s is not None and later.begins_s is not None:
        wait_s = round(max(0.0, later.begins_s - call.ends_s), 6)
    output = tuple(call.output)
    tools = later.tools
    if tools is None:
        notes["the tool behind a request's new tokens was not named; they count as a response of 'tool'"] += 1
        tools = (Tool("tool"),)
    if not tools or growth.context is not None:  # a user wrote, or the context was written anew
        return Turn(
            reasoning_tokens=0,
            text_tokens=len(output),
            text_token_ids=output,
            calls=(),
            template_tokens=growth.tokens,
            template_token_ids=tuple(growth.ids) if growth.ids else None,
            user_wait_s=wait_s,
            reset=reset,
        )
    # How an output divides is not recorded: half of it is the calls (a guess, as in count formats).
    said = shared_out(len(output) // 2, [1.0] * len(tools))
    sizes = _responses(tools, growth.tokens, notes)
    parts = split(output, [len(output) - sum(said), *said])
    template = growth.tokens - sum(sizes)
    added = split(growth.ids, [template, *sizes]) if growth.ids is not None else None
    cursor = sum(len(turn.calls) for turn in before)
    made = tuple(
        Call(
            tool=tool.name,
            call_tokens=said[number],
            call_token_ids=tuple(parts[number + 1]),
            cursor=cursor + number,
            response_tokens=sizes[number],
            response_token_ids=None if added is None else tuple(added[number + 1]),
            latency_s=wait_s,
            parallel=len(tools) > 1,
        )
        for number, tool in enumerate(tools)
    )
    return Turn(
        reasoning_tokens=0,
        text_tokens=len(parts[0]),
        text_token_ids=tuple(parts[0]),
        calls=made,
        template_tokens=template,
        template_token_ids=tuple(added[0]) if added is not None and template else None,
        reset=reset,
    )


def _responses(tools: Sequence[Tool], tokens: int, notes: Notes) -> list[int]:
    """Divide what a prompt grew by among the tools' responses: by the sizes sent, else by length in characters."""
    if all(tool.tokens is not None for tool in tools):
        told = [tool.tokens or 0 for tool in tools]
        if sum(told) <= tokens:
            return told
        notes["the named responses have more tokens than the prompt grew by; they are scaled to it"] += 1
        return shared_out(tokens, [float(size) for size in told])
    weights = [float(tool.tokens or tool.chars or 0) for tool in tools]
    if len(tools) > 1:
        notes[
            "how a prompt's new tokens divide among several tools is not recorded; shared by their length"
        ] += 1
    return shared_out(tokens, weights)


def _totals(requests: Sequence[Served], notes: Notes) -> None:
    """Note the accounts that the server itself recorded, for comparison with a simulation's."""
    notes["prompt tokens recorded"] += sum(call.prompt.length for call in requests)
    notes["output tokens recorded"] += sum(len(call.output) for call in requests)
    cached = [call.cached for call in requests if call.cached is not None]
    if cached:
        notes["prompt tokens recorded that the server found cached"] += sum(cached)
