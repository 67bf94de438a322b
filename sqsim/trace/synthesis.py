# SPDX-License-Identifier: Apache-2.0
"""Synthesise tasks that resemble recorded ones: `synthesise(profile, tasks, seed, scale)`.

The profiles are guesses from FORMATS.md ("What real runs look like", "Generator defaults") and METHOD.md
("Workloads"); traces/README.md gives the resulting figures. Every draw is keyed by (seed, purpose, task,
turn), so task i is the same whatever the number of tasks and whatever its other turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from sqsim.base.random_streams import generator
from sqsim.errors import InputError
from sqsim.trace.latency import tool_latency_s
from sqsim.trace.references import synthesise_uses
from sqsim.trace.schema import Answer, Call, Carries, Outcome, Prefix, Question, Source, Task, Turn

TEMPLATE_TOKENS = 10
"""Role markers of a turn: a harmony call and response have about ten (assumed)."""


class Lognormal(NamedTuple):
    """Lognormal distribution by its median and the sigma of its logarithm, cut to `[low, high]`."""

    median: float
    sigma: float
    low: float
    high: float

    def sample(self, draws: np.random.Generator) -> int:
        value = self.median * math.exp(self.sigma * draws.standard_normal())
        return round(min(self.high, max(self.low, value)))


class Tool(NamedTuple):
    """Tool with its frequency, its response sizes, and its failure rate."""

    name: str
    share: float
    response: Lognormal
    failure: float


@dataclass(frozen=True)
class Profile:
    """Profile of one kind of agent, in tokens and steps; `steps` counts model calls, the answer included."""

    name: str
    steps: Lognormal
    tools: tuple[Tool, ...]
    output: Lognormal  # of a turn: reasoning, text and calls
    call: tuple[int, int]
    answer: tuple[int, int]
    prefix_tokens: int
    question: Lognormal
    parallel: float = 0.0  # share of turns with more calls than one
    runaway: float = 0.0  # share of tasks whose last step reasons without end


# A browser view holds up to 1,024 tokens (gpt-oss simple_browser); most pages and result lists fill it.
_VIEW = Lognormal(1050, 0.12, 100, 1024)
_FIND = Lognormal(150, 0.5, 20, 1024)
_BROWSER = (Tool("search", 0.46, _VIEW, 0.03), Tool("open", 0.42, _VIEW, 0.06), Tool("find", 0.12, _FIND, 0.05))
_SHELL_TEXT = Lognormal(math.exp(5.6), 1.7, 1, 30_000)

# frames: mean of the lognormal 23.5 and p90 36 give sigma 0.39 and a median of 21.75 steps.
# output a turn: a mean of 190 with sigma 0.7 (between the 0.66 and 1.02 of the fits) gives a median of 149.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "frames", Lognormal(21.75, 0.39, 3, 80), _BROWSER, Lognormal(149, 0.7, 40, 4096),
            (30, 60), (200, 600), 1500, Lognormal(70, 0.4, 20, 400),
        ),
        Profile(
            "browsecomp", Lognormal(40, 0.7, 4, 150), _BROWSER, Lognormal(149, 0.7, 40, 4096),
            (30, 60), (200, 600), 1500, Lognormal(120, 0.4, 40, 600), runaway=0.025,
        ),
        Profile(
            "coding", Lognormal(32, 0.6, 3, 150),
            (
                Tool("Read", 0.30, _SHELL_TEXT, 0.02), Tool("Edit", 0.20, Lognormal(120, 0.8, 10, 2000), 0.04),
                Tool("Grep", 0.10, _SHELL_TEXT, 0.02), Tool("Bash", 0.40, _SHELL_TEXT, 0.08),
            ),
            Lognormal(143, 1.02, 20, 8192), (30, 120), (150, 600), 15_000, Lognormal(200, 1.0, 10, 4000),
            parallel=0.15,
        ),
    )
}  # fmt: skip


def synthesise(profile: str | Profile, tasks: int, seed: int = 0, scale: float = 1.0) -> Iterator[Task]:
    """Synthesise `tasks` tasks of a profile; `scale` multiplies every token count (a count above 0 stays above 0).

    A profile is one of `PROFILES` by its name, or one of your own.
    """
    if isinstance(profile, str) and profile not in PROFILES:
        raise InputError(f"profile {profile!r} does not exist; choose one of {', '.join(PROFILES)}")
    if tasks < 1:
        raise InputError(f"{tasks} tasks make no trace; ask for at least 1")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale {scale} is not a positive number")
    found = PROFILES[profile] if isinstance(profile, str) else profile
    return (_bounded(found, index, seed, scale) for index in range(tasks))


def _bounded(profile: Profile, index: int, seed: int, scale: float) -> Task:
    try:
        return _task(profile, index, seed, scale)
    except (ValidationError, OverflowError) as error:
        raise InputError(
            f"scale {scale:g} makes a count of task {index} larger than 10^9 tokens; give a smaller one"
        ) from error


def _task(profile: Profile, index: int, seed: int, scale: float) -> Task:
    draws = generator(seed, "synthesis.task", profile.name, index)
    steps = profile.steps.sample(draws)
    question = profile.question.sample(draws)
    answer = int(draws.integers(profile.answer[0], profile.answer[1] + 1))
    reasoning = round(answer * draws.uniform(0.2, 0.6))
    runaway = bool(draws.random() < profile.runaway)
    if runaway:  # it thinks on and never answers
        answer = reasoning = int(draws.integers(8_000, 32_001))
    turns: list[Turn] = []
    cursor = 0
    for turn in range(steps - 1):
        turns.append(
            _turn(profile, generator(seed, "synthesis.turn", profile.name, index, turn), cursor, scale)
        )
        cursor += sum(call.cursor is not None for call in turns[-1].calls)
    task = Task(
        task_id=f"{profile.name}-{seed}-{index:06d}",
        source=Source(format=f"sqsim synth {profile.name} --seed {seed} --scale {scale:g}"),
        model="gpt-oss-20b",
        carries=Carries(timing="synthesised", usage="synthesised"),
        prefix=Prefix(id=f"synth-{profile.name}-x{scale:g}", tokens=_scaled(profile.prefix_tokens, scale)),
        question=Question(tokens=_scaled(question, scale)),
        turns=tuple(turns),
        answer=Answer(
            reasoning_tokens=_scaled(reasoning, scale), text_tokens=_scaled(answer - reasoning, scale)
        ),
        outcome=Outcome(finish="unparsable" if runaway else "answer"),
    )
    return synthesise_uses(task, seed)


def _scaled(tokens: int, scale: float) -> int:
    """Scale a token count; only 0 tokens become 0."""
    return max(1, round(tokens * scale)) if tokens else 0


class _Drawn(NamedTuple):
    """Call whose tokens are not scaled yet."""

    tool: str
    call_tokens: int
    response_tokens: int
    failed: bool
    latency_s: float


def _turn(profile: Profile, draws: np.random.Generator, cursor: int, scale: float) -> Turn:
    """Draw one turn; its successful calls take the cursors from `cursor` on."""
    many = bool(draws.random() < profile.parallel)
    drawn = [_call(profile, draws) for _ in range(int(draws.integers(2, 4)) if many else 1)]
    called = sum(call.call_tokens for call in drawn)
    rest = max(profile.output.sample(draws), called + 10) - called
    text = rest // 10  # gpt-oss mostly thinks and calls; a tenth is a guess
    calls: list[Call] = []
    for call in drawn:
        calls.append(
            Call(
                tool=call.tool,
                call_tokens=_scaled(call.call_tokens, scale),
                cursor=None if call.failed else cursor,
                response_tokens=_scaled(call.response_tokens, scale),
                latency_s=call.latency_s,
                error="synthetic failure" if call.failed else None,
                parallel=many,
            )
        )
        cursor += not call.failed
    return Turn(
        reasoning_tokens=_scaled(rest - text, scale),
        text_tokens=_scaled(text, scale),
        calls=tuple(calls),
        template_tokens=_scaled(TEMPLATE_TOKENS * len(calls), scale),
    )


def _call(profile: Profile, draws: np.random.Generator) -> _Drawn:
    shares = [tool.share for tool in profile.tools]
    tool = profile.tools[int(draws.choice(len(shares), p=shares))]
    failed = bool(draws.random() < tool.failure)
    response = int(draws.integers(15, 61)) if failed else tool.response.sample(draws)
    call = int(draws.integers(profile.call[0], profile.call[1] + 1))
    return _Drawn(tool.name, call, response, failed, tool_latency_s(tool.name, draws))
