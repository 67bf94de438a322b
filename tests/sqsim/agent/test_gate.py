# SPDX-License-Identifier: Apache-2.0
"""Agents at a gate, whatever the world they wait in."""

from __future__ import annotations

import asyncio

from sqsim.agent.gate import GateKeeper
from sqsim.policies.pause import MemoryGate


def test_who_does_not_fit_waits_until_there_is_room_and_is_counted():
    """Known answer: of three agents with 60 tokens under a limit of 130 the third waits for the first one's end."""
    log = []
    clock = 0.0

    async def agent(name: str, ends: asyncio.Event) -> None:
        if not keeper.may_pass(name, 60, may_pause=True):
            log.append(f"{name} waits")
            await keeper.wait(name)
        log.append(f"{name} works")
        await ends.wait()
        keeper.leave(name)

    async def scene() -> None:
        nonlocal clock
        ends = {name: asyncio.Event() for name in "abc"}
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(agent(name, ends[name]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock = 5.0
            for event in ends.values():
                event.set()

    keeper = GateKeeper(MemoryGate(130, 120), lambda: clock, asyncio.Event)
    asyncio.run(scene())
    assert log == ["a works", "b works", "c waits", "c works"]
    assert (keeper.pauses, keeper.paused_s) == (1, 5.0)


def test_a_sub_agent_passes_where_its_parent_would_pause():
    keeper = GateKeeper(MemoryGate(100, 90), lambda: 0.0, asyncio.Event)
    assert keeper.may_pass("a", 90, may_pause=True)
    assert keeper.may_pass("a.sub", 90, may_pause=False)
    assert not keeper.may_pass("b", 90, may_pause=True)
