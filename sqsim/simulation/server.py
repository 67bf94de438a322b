"""What serves requests in simulated time: an engine, several behind a router, or either of them behind a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import simpy

from sqsim.models.serving.request import Request


@dataclass(slots=True, eq=False)
class Submission:
    """A request at the engine, and when it got where. `done` carries None, or the name of the failure.

    `first_token`, for who waits for it, comes with the first token, or with the end where there is none.
    """

    request: Request
    submit_s: float
    done: simpy.Event
    first_token: simpy.Event | None = None
    admit_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    replica: int = 0  # where it was served

    def start(self, now_s: float) -> None:
        """The first token is out."""
        self.first_token_s = now_s
        if self.first_token is not None:
            self.first_token.succeed()

    def end(self, now_s: float, failure: str | None) -> None:
        """It is over."""
        self.end_s = now_s
        if self.first_token is not None and self.first_token_s is None:
            self.first_token.succeed()
        self.done.succeed(failure)


class Server(Protocol):
    """Takes requests and reports their fate. Sessions belong to an `Engine`: no router tears one apart."""

    def submit(self, request: Request, *, tell_first_token: bool = False) -> Submission:
        """Take a request."""

    def cancel(self, submission: Submission) -> None:
        """Abort a request; its `done` carries "abort"."""

    def kv_usage(self) -> float:
        """Share (0 to 1) of the KV slots that are neither free nor evictable, where the next request would be served.

        Of the fuller pool, where full-attention and sliding-window layers have one each.
        """
