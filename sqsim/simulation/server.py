# SPDX-License-Identifier: Apache-2.0
"""The protocol of a simulated server: an engine, several behind a router, or either of them behind a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import simpy

from sqsim.models.serving.request import Request


@dataclass(slots=True, eq=False)
class Submission:
    """A submitted request and the times of its progress. `done` carries None, or the name of the failure.

    `first_token` is triggered by the first token, or by the end of a request without one; None where no agent waits for it.
    """

    request: Request
    submit_s: float
    done: simpy.Event
    first_token: simpy.Event | None = None
    admit_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    replica: int = 0  # number of the replica that served it

    def start(self, now_s: float) -> None:
        """Note the first token."""
        self.first_token_s = now_s
        if self.first_token is not None:
            self.first_token.succeed()

    def end(self, now_s: float, failure: str | None) -> None:
        """Note the end."""
        self.end_s = now_s
        if self.first_token is not None and self.first_token_s is None:
            self.first_token.succeed()
        self.done.succeed(failure)


class Server(Protocol):
    """Takes requests and reports their ends. Sessions belong to one `Engine`: no router may split their turns."""

    def submit(self, request: Request, *, tell_first_token: bool = False) -> Submission:
        """Take a request."""

    def cancel(self, submission: Submission) -> None:
        """Abort a request; its `done` carries "abort"."""

    def kv_usage(self) -> float:
        """Return the share (0 to 1) of KV slots neither free nor evictable on the engine that would serve the next request.

        It is that of the fuller pool, where full-attention and sliding-window layers have one each.
        """
