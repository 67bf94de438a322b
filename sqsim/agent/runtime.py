# SPDX-License-Identifier: Apache-2.0
"""The contract between an agent's task and its environment: the simulation, or a real server in real time.

A task is one coroutine (task.py) that knows neither SimPy nor asyncio. It needs one object, a `Runtime`. The simulation
and the replay each implement one, and drive the coroutine through the awaitables that the runtime's methods return.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sqsim.agent.served import Served
from sqsim.agent.turn_loop import AuxThread, Clear, RunMain

if TYPE_CHECKING:
    from sqsim.agent.task import AgentTask


class Reply(Protocol):
    """The server's reply to one request, while it arrives."""

    @property
    def served(self) -> Served:
        """The request's figures so far; complete once the request has ended."""

    @property
    def fresh(self) -> bool:
        """Whether the server computed this ended session turn from position 0, as it had lost the session's KV."""

    async def first_token(self) -> bool:
        """Wait for the first token; returns False where the request ended without one."""

    async def end(self) -> str | None:
        """Wait for the end; returns None, or the name of the failure."""

    def when_ended(self, call: Callable[[], None]) -> None:
        """Register a call for the end of the request, whatever its outcome."""


class Running(Protocol):
    """A sub-agent that was started."""

    async def join(self) -> None:
        """Wait until it has ended."""


class Notes(Protocol):
    """Notes about one task, for the record."""

    def clear(self, action: Clear, now_s: float) -> None:
        """Note that cursors were cleared from the main context."""

    def main(self, step: RunMain, served: Served) -> None:
        """Note that a main step has ended or failed."""

    def tools_returned(self, now_s: float) -> None:
        """Note that the last tool response of the last main step has returned."""


class Runtime(Protocol):
    """One agent's clock, its connection to the server, its session there, and its place at the policy's gate.

    Times are seconds of the run. An agent has a session where the run has sessions; without one, `drop` does nothing.
    """

    @property
    def now(self) -> float:
        """Seconds of the run until now."""

    @property
    def notes(self) -> Notes:
        """The task's notes."""

    @property
    def kv_kept(self) -> bool:
        """Whether the server still holds the session's KV, as far as the agent knows; True without a session."""

    def kv_usage(self) -> float:
        """Share (0 to 1) of the server's KV slots that are neither free nor evictable now.

        With replicas: of the replica that would get the next request. With two pools: of the fuller one.
        """

    @property
    def has_gate(self) -> bool:
        """Whether the policy has a gate that the agents of a run pass at their boundaries."""

    async def pass_gate(self, tokens: int) -> None:
        """Pass the gate at a boundary, with a context of `tokens` tokens.

        Where the policy pauses the agent, it gives up its session's KV and waits. A sub-agent never pauses: its parent
        keeps its own KV until the sub-agent is done.
        """

    async def main(self, step: RunMain, *, forked: int | None, hold_s: float, awaits_prefill: bool) -> Reply:
        """Send a main step.

        forked: tokens of it that an aux thread is going to read. hold_s: seconds after the step for which the server
        must keep the idle session. awaits_prefill: whether the task is going to await `first_token`.
        """

    def aux(self, thread: AuxThread) -> Reply:
        """Send an aux thread's request."""

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Cut sorted spans [start, stop) of resident tokens out of the session in place."""

    def start(self, task: AgentTask) -> Running:
        """Start a sub-agent."""

    def tools(self, wait_s: float) -> Awaitable[object]:
        """Wait for the tools; the session is idle meanwhile."""

    def sleep(self, wait_s: float) -> Awaitable[object]:
        """Wait for the user."""

    async def leave(self, cancel: Reply | None) -> None:
        """Leave the server: abort a living aux thread, leave the gate, close the session."""

    def over(self, start_s: float, end_s: float, outcome: str, aux: Sequence[tuple[AuxThread, Reply]]) -> None:
        """Write the task's rows once all its requests have ended, so that the rows count their whole cost."""
