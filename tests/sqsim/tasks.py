# SPDX-License-Identifier: Apache-2.0
"""Small tasks for tests: made by hand, or drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from sqsim.trace.schema import Answer, Call, Carries, Parent, Prefix, Question, Reset, Source, Spawn, Task, Turn

CARRIES = Carries(usage="recorded", timing="recorded", references="recorded")


def call(
    cursor: int | None, response: int = 100, *, tokens: int = 10, latency_s: float = 1.0, parallel: bool = False
) -> Call:
    error = None if cursor is not None else "failed"
    return Call(
        tool="open",
        call_tokens=tokens,
        cursor=cursor,
        response_tokens=response,
        latency_s=latency_s,
        error=error,
        parallel=parallel,
    )


def turn(*calls: Call, uses: tuple[int, ...] = (), reasoning: int = 20, text: int = 5, **more) -> Turn:
    return Turn(reasoning_tokens=reasoning, text_tokens=text, calls=calls, uses=uses, **more)


def task(
    *turns: Turn, answer_uses: tuple[int, ...] = (), answer: int | None = 50, name: str = "t", **more
) -> Task:
    """A task with a 40-token shared prefix and a 30-token question; `answer=None`: the recording ends without one."""
    fields = {
        "task_id": name,
        "source": Source(format="hand"),
        "carries": CARRIES,
        "prefix": Prefix(id="p", tokens=40),
        "question": Question(tokens=30),
        "turns": turns,
        "answer": None if answer is None else Answer(reasoning_tokens=0, text_tokens=answer, uses=answer_uses),
        **more,
    }
    return Task(**fields)


def chain(turns: int, response: int = 100, uses: dict[int, tuple[int, ...]] | None = None, **more) -> Task:
    """Turn t opens cursor t; `uses` maps a step to the cursors that it refers to."""
    wanted = uses or {}
    steps = [turn(call(index, response), uses=wanted.get(index, ())) for index in range(turns)]
    return task(*steps, answer_uses=wanted.get(turns, ()), **more)


@st.composite
def tasks(
    draw: st.DrawFn, name: str = "t", max_turns: int = 8, max_tokens: int = 60, latencies: bool = True
) -> Task:
    """A random task: failed and parallel calls, resets, user waits, stripped reasoning, random references."""
    number = draw(st.integers(1, max_turns))
    tokens = st.integers(0, max_tokens)
    seconds = st.integers(0, 64).map(lambda n: n / 16) if latencies else st.just(0.0)
    cursor = 0
    turns: list[Turn] = []
    opened: list[tuple[int, int]] = []
    for index in range(number):
        calls = []
        reset = (
            Reset(keep_tokens=draw(st.integers(1, max_tokens)))
            if index and draw(st.integers(0, 7)) == 0
            else None
        )
        if reset is not None:
            opened = []
        uses = [c for c, at in opened if at < index and draw(st.booleans())]
        for _ in range(draw(st.integers(1, 2))):
            failed = draw(st.integers(0, 5)) == 0
            calls.append(
                call(
                    None if failed else cursor,
                    draw(tokens),
                    tokens=draw(st.integers(1, 12)),
                    latency_s=draw(seconds),
                    parallel=draw(st.booleans()),
                )
            )
            if not failed:
                opened.append((cursor, index))
                cursor += 1
        turns.append(
            turn(
                *calls,
                uses=tuple(uses),
                reasoning=draw(tokens),
                text=draw(tokens),
                template_tokens=draw(st.integers(0, 4)),
                user_wait_s=draw(seconds) if draw(st.integers(0, 4)) == 0 else 0.0,
                reset=reset,
            )
        )
    answer_uses = tuple(c for c, _ in opened if draw(st.booleans()))
    answered = draw(st.booleans())
    return task(
        *turns,
        name=name,
        answer=draw(st.integers(1, max_tokens)) if answered else None,
        answer_uses=answer_uses if answered else (),
        reasoning_kept=draw(st.integers(0, 3)) > 0,
        question=Question(tokens=draw(st.integers(1, max_tokens))),
        prefix=Prefix(id=draw(st.sampled_from(["p", "q"])), tokens=40),
    )


@st.composite
def families(draw: st.DrawFn, max_tasks: int = 5, **options) -> list[Task]:
    """Random root tasks, some with a sub-agent."""
    found: list[Task] = []
    for index in range(draw(st.integers(1, max_tasks))):
        root = draw(tasks(name=f"t{index}", **options))
        found.append(root)
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(root.turns) - 1))
            join = draw(st.integers(at + 1, len(root.turns)))
            child = draw(tasks(name=f"t{index}.sub", **options))
            found.append(
                child.model_copy(
                    update={
                        "parent": Parent(task_id=root.task_id, turn=at),
                        "spawn": Spawn(turn=at, join_turn=join),
                    }
                )
            )
    return found
