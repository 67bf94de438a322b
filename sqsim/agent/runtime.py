"""The contract between an agent's task and the world it runs in: simulated time, or a real server and real seconds.

A task is one coroutine (task.py) that knows neither SimPy nor asyncio. What it needs of its world is a `Runtime`; each
world has its own, and drives the coroutine through what the runtime's methods wait for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sqsim.agent.served import Served
from sqsim.agent.turn_loop import AuxThread, Clear, RunMain

if TYPE_CHECKING:
    from sqsim.agent.task import AgentTask


class Reply(Protocol):
    """The server's reply to one request, as it comes."""

    @property
    def served(self) -> Served:
        """What became of the request so far; complete once it has ended."""

    @property
    def fresh(self) -> bool:
        """Whether a session's turn, now ended, was computed from position 0, as the server had lost the session's KV."""

    async def first_token(self) -> bool:
        """Wait for the first token. False where the request ended without one."""

    async def end(self) -> str | None:
        """Wait for the end: None, or the name of the failure."""

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call this at the end, however it comes."""


class Running(Protocol):
    """A sub-agent that was started."""

    async def join(self) -> None:
        """Wait until it has ended."""


class Notes(Protocol):
    """Takes down what happens to one task, for the record."""

    def clear(self, action: Clear, now_s: float) -> None:
        """Cursors were cleared from the main context."""

    def main(self, step: RunMain, served: Served) -> None:
        """A main step is over, one way or the other."""

    def tools_returned(self, now_s: float) -> None:
        """The last tool response of the last main step has returned."""


class Runtime(Protocol):
    """One agent's clock, its way to the server, its session there, and its place at the policy's gate.

    Times are seconds of the run. An agent has a session where the run has sessions; without one, `drop` does nothing.
    """

    @property
    def now(self) -> float:
        """The time."""

    @property
    def notes(self) -> Notes:
        """The task's notes."""

    @property
    def kv_kept(self) -> bool:
        """Whether the server still holds the session's KV, as far as the agent knows; True without a session."""

    def kv_usage(self) -> float:
        """Share (0 to 1) of the server's KV slots that are neither free nor evictable, now.

        Of several replicas: the one that would get the next request. Of two pools: the fuller one.
        """

    @property
    def has_gate(self) -> bool:
        """Whether the policy has a gate, which the agents of a run pass at their boundaries."""

    async def pass_gate(self, tokens: int) -> None:
        """Pass the gate at a boundary, with a context of so many tokens.

        Where the policy pauses the agent, it gives up its session's KV and waits. A sub-agent never pauses: its parent
        keeps its own KV until the sub-agent is done.
        """

    async def main(self, step: RunMain, *, forked: int | None, hold_s: float, awaits_prefill: bool) -> Reply:
        """Send a main step.

        forked: tokens of it that an aux thread is going to read. hold_s: seconds after the step for which the server
        must keep the idle session. awaits_prefill: whether `first_token` is going to be waited for.
        """

    def aux(self, thread: AuxThread) -> Reply:
        """Send an aux thread's request."""

    def drop(self, spans: Sequence[tuple[int, int]]) -> None:
        """Have spans [start, stop) of resident tokens, sorted, cut out of the session in place."""

    def start(self, task: AgentTask) -> Running:
        """Start a sub-agent."""

    def tools(self, wait_s: float) -> Awaitable[object]:
        """Wait for tools; the session is idle meanwhile."""

    def sleep(self, wait_s: float) -> Awaitable[object]:
        """Wait for the user."""

    async def leave(self, cancel: Reply | None) -> None:
        """End the agent's part: abort a living aux thread, leave the gate, close the session."""

    def over(self, start_s: float, end_s: float, outcome: str, aux: Sequence[tuple[AuxThread, Reply]]) -> None:
        """Have the task's rows written once everything that it sent has ended, so that all it cost is counted."""
