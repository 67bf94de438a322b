# SPDX-License-Identifier: Apache-2.0
"""An agent's session: what of each prompt is sent, and what the plugin is asked with it."""

from __future__ import annotations

import asyncio

from sqreal.replay.session import AgentSession
from sqsim.models.serving.tokens import Run


class Doors:
    """A client that notes which sessions are opened and closed."""

    def __init__(self):
        self.said = []

    async def open_session(self, name):
        self.said.append(f"open {name}")

    async def close_session(self, name):
        self.said.append(f"close {name}")


def place(session, prompt, first=10, forked=None, restart=False, hold_s=0.0):
    content = (Run(0, 0, prompt),)
    return asyncio.run(session.turn(prompt, first, forked, restart=restart, content=content, hold_s=hold_s))


def test_only_what_is_new_is_sent():
    session = AgentSession(Doors(), "s")
    first = place(session, 30)
    assert (first.held, first.asks) == (0, {"sqreal_publish": 10})
    assert not session.ended(30, 8, cached_tokens=0, retractions=0)
    second = place(session, 60, forked=60)
    assert (second.held, second.turn_of, second.asks) == (38, "s", {"sqreal_forked": 60})
    assert session.client.said == ["open s"]


def test_spans_are_named_by_what_was_told_however_much_is_gone():
    session = AgentSession(Doors(), "s")
    place(session, 100)
    session.ended(100, 20, 0, 0)
    session.drop([(20, 30), (50, 60)])
    assert session.drops
    second = place(session, 130)
    assert second.held == 100
    assert second.asks == {"sqreal_drop": [[20, 30], [50, 60]]}
    assert not session.drops
    assert not session.ended(130, 10, cached_tokens=99, retractions=0)
    session.drop([(15, 25), (45, 55)])  # around the gaps: what is gone is not named again
    assert place(session, 150).asks == {"sqreal_drop": [[15, 20], [30, 35], [65, 75]]}


def test_a_server_that_lost_the_kv_starts_its_positions_anew():
    session = AgentSession(Doors(), "s")
    place(session, 100)
    session.ended(100, 20, 0, 0)
    place(session, 130)
    assert session.ended(130, 5, cached_tokens=10, retractions=0)
    place(session, 150)
    assert session.ended(150, 5, cached_tokens=134, retractions=1)


def test_a_rewritten_history_is_a_new_session():
    session = AgentSession(Doors(), "s")
    place(session, 100)
    session.ended(100, 20, 0, 0)
    again = place(session, 90, first=20, restart=True)
    assert (again.held, again.asks) == (0, {"sqreal_publish": 20})
    session.ended(90, 5, 0, 0)
    assert place(session, 95).held == 0  # nothing of its own to say: SGLang takes no such turn
    asyncio.run(session.close())
    asyncio.run(session.close())
    assert session.client.said == ["open s", "close s", "open s", "close s", "open s", "close s"]


def test_a_turn_asks_to_be_held():
    assert place(AgentSession(Doors(), "s"), 30, hold_s=2.5).asks == {
        "sqreal_publish": 10,
        "sqreal_hold_s": 2.5,
    }


def test_a_fork_of_a_rewritten_history_reads_what_is_the_same():
    """The server refuses a fork that repeats other tokens than the session holds."""
    session = AgentSession(Doors(), "s")
    assert session.fork((Run(0, 0, 100),), 100) is None  # there is nothing to read
    place(session, 100)
    assert session.fork((Run(0, 0, 70), Run(1, 0, 30)), 90).fork_tokens == 70
    assert (
        session.fork((Run(0, 0, 100), Run(1, 0, 30)), 120).fork_tokens == 120
    )  # what comes with the next turn too
    asyncio.run(session.close())
    assert session.fork((Run(0, 0, 100),), 100) is None


def test_a_fork_is_no_turn():
    session = AgentSession(Doors(), "s")
    place(session, 100)
    fork = session.fork((Run(0, 0, 100),), 40)
    assert fork.turn_of is None
    assert fork.asks == {"sqreal_fork": {"session": "s", "tokens": 40}}
