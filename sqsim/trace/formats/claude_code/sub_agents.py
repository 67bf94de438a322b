# SPDX-License-Identifier: Apache-2.0
"""Find the call that started each sub-agent, nested ones included, and each call's other waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqsim.trace.formats.claude_code.chain import Chain, Use


@dataclass(frozen=True)
class Started:
    """Parent of a sub-agent, by name, and the call that started it."""

    parent: str
    use: Use


def started(mains: Mapping[str, Chain], sides: Mapping[str, Chain]) -> dict[str, Started]:
    """Find the parent of each sub-agent that a call started; a parent comes before its own sub-agents.

    An agent's id in a tool's result names it for certain. Else it is the call with the same prompt, else the call that
    was running when it began: the latest made, of those that no other sub-agent is known to answer.
    """
    placed: dict[str, Chain] = dict(mains)
    found: dict[str, Started] = {}
    waiting = dict(sorted(sides.items(), key=lambda item: (item[1].started_s or 0.0, item[0])))
    while waiting:
        name = _next(waiting, placed, found)
        if name is None:  # no call started it; it may have started others
            name = next(iter(waiting))
        placed[name] = waiting.pop(name)
    return found


def _next(waiting: Mapping[str, Chain], placed: Mapping[str, Chain], found: dict[str, Started]) -> str | None:
    """Put the next sub-agent with a known parent into `found`; those that an id names come first."""
    for name in waiting:
        where = _by_name(name, placed)
        if where is not None:
            found[name] = where
            return name
    answered = {id(each.use) for each in found.values()}
    for name, side in waiting.items():
        where = _likely(side, placed, answered)
        if where is not None:
            found[name] = where
            return name
    return None


def _uses(placed: Mapping[str, Chain]) -> list[Started]:
    return [Started(name, use) for name, chain in placed.items() for use in chain.uses]


def _by_name(name: str, placed: Mapping[str, Chain]) -> Started | None:
    return next((each for each in _uses(placed) if each.use.agent == name), None)


def _likely(side: Chain, placed: Mapping[str, Chain], answered: set[int]) -> Started | None:
    begun_s = side.started_s or 0.0
    asked = [
        each
        for each in _uses(placed)
        if each.use.prompt is not None and each.use.agent is None and id(each.use) not in answered
    ]
    by_prompt = [each for each in asked if (each.use.prompt or "").strip() == side.question.strip()]
    running = [each for each in asked if each.use.made_s <= begun_s <= (each.use.answered_s or begun_s)]
    earlier = [each for each in by_prompt if each.use.made_s <= begun_s]
    return max(earlier or by_prompt or running, key=lambda each: each.use.made_s, default=None)


def leave_own_wait(found: Mapping[str, Started], sides: Mapping[str, Chain], placed: Iterable[Chain]) -> None:
    """Remove from a call its wait for sub-agents: they are simulated, and must not be waited for twice.

    The time that it took after them, and after the other tools of its step, is a wait after the tools.
    """
    ends: dict[int, list[float]] = {}
    for name, each in found.items():
        use = each.use
        if use.answered_s is not None and sides[name].ended_s <= use.answered_s:
            ends.setdefault(id(use), []).append(sides[name].ended_s)
    for chain in placed:
        for model in chain.models:
            uses = [use for use in chain.uses if use.step is model.step and use.answered_s is not None]
            waited = [use for use in uses if id(use) in ends]
            if not waited:
                continue
            over = [use.answered_s or 0.0 for use in uses if id(use) not in ends]
            over += [end_s for use in waited for end_s in ends[id(use)]]
            behind_s = max(use.answered_s or 0.0 for use in uses) - max(over)
            model.step.user_wait_s = round(model.step.user_wait_s + max(0.0, behind_s), 3)
            for use in waited:
                use.call.latency_s = 0.0
