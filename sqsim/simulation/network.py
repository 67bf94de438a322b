# SPDX-License-Identifier: Apache-2.0
"""The network between agents and the server, for profiles that state its delays."""

from __future__ import annotations

from collections.abc import Callable, Generator

import simpy

from sqsim.models.cost.profile import ClientTerm
from sqsim.models.serving.request import Request
from sqsim.simulation.server import Server, Submission


class Network:
    """A server behind a network: requests and results are delayed, and times are those that the agent sees.

    Drops and closings of sessions reach the engine at once, because a real agent sends them with its next request.
    """

    def __init__(self, env: simpy.Environment, server: Server, delays: ClientTerm) -> None:
        self._env = env
        self._server = server
        self._delays = delays
        self._far: dict[Submission, Submission] = {}

    def submit(self, request: Request, *, tell_first_token: bool = False) -> Submission:
        """Send a request; the submission's events come when the agent receives them."""
        env = self._env
        near = Submission(request, env.now, env.event(), env.event() if tell_first_token else None)
        env.process(self._carry(near))
        return near

    def cancel(self, near: Submission) -> None:
        """Abort a request after the delay of a request."""
        self._after(self._delays.request_s, lambda: self._cancel(near))

    def kv_usage(self) -> float:
        """Return the server's KV usage without delay: the agent's framework reads it apart from requests."""
        return self._server.kv_usage()

    def _cancel(self, near: Submission) -> None:
        far = self._far.get(near)
        if far is not None:
            self._server.cancel(far)

    def _carry(self, near: Submission) -> Generator[simpy.Event, object, None]:
        yield self._env.timeout(self._delays.request_s)
        far = self._far[near] = self._server.submit(near.request, tell_first_token=True)
        assert far.first_token is not None
        yield far.first_token
        if far.first_token_s is not None:
            self._after(self._delays.response_s, lambda: near.start(self._env.now))
        if not far.done.processed:
            yield far.done
        yield self._env.timeout(self._delays.response_s)
        del self._far[near]
        near.admit_s, near.replica = far.admit_s, far.replica
        near.end(self._env.now, far.done.value)

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        event = self._env.timeout(delay_s)
        assert event.callbacks is not None
        event.callbacks.append(lambda _: then())
