# SPDX-License-Identifier: Apache-2.0
"""Checks of a policy's answers: a policy that raises or returns a wrong value ends the run with an error that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sqsim.errors import PolicyError
from sqsim.policies.base import Decision, Decisions, Policy, Script, View
from sqsim.policies.contract.asking import Answer, asked, shown
from sqsim.policies.contract.definition import is_hold


class Guarded:
    """A policy and its decision model in one task, with every answer checked.

    Its methods are those of the policy. They build a view only where the policy overrides the method. PolicyError: the
    policy raised an exception, or gave an answer that the contract does not allow.
    """

    def __init__(self, policy: Policy, decisions: Decisions | None, task: str) -> None:
        self._policy, self._decisions, self._task = policy, decisions, task
        # A method that the policy does not override is not called, and no view is built for it.
        self._evicts, self._spawns, self._summarises = (
            policy.overrides(name) for name in ("evict", "spawn_aux", "summarise")
        )
        self._holds = policy.overrides("hold_s")

    @property
    def hold_s(self) -> float:
        """Seconds after a turn for which the server must keep the task's idle session."""
        if not self._holds:
            return 0.0
        answer = asked(self._policy, "hold_s", lambda: self._policy.hold_s)
        if not is_hold(answer):
            raise PolicyError(
                f"policy {self._policy.name}: hold_s is {shown(answer)}; return seconds, 0 to 1e9"
            )
        return answer

    def evict(self, look: Callable[[], View]) -> list[int]:
        """Ask for the cursors to evict; returns them in the view's order."""
        if not self._evicts:
            return []
        view = look()
        answer = self._call("evict", view.turn, lambda: _listed(self._policy.evict(view)))
        if answer is None:
            raise self._wrong("evict", view.turn, "returns None", "return a list, [] for none")
        if not answer:
            return []
        there = {cursor.cursor: cursor.read for cursor in view.cursors}
        for cursor in answer:
            if not _is_whole(cursor):
                raise self._wrong(
                    "evict", view.turn, f"names {shown(cursor)}, which is no cursor", _whole(cursor)
                )
            if cursor not in there:
                known = ", ".join(map(str, there)) or "none"
                raise self._wrong(
                    "evict", view.turn, f"names cursor {cursor}, which is not open", f"open are: {known}"
                )
            if not there[cursor]:
                raise self._wrong(
                    "evict",
                    view.turn,
                    f"names cursor {cursor}, which was not read yet",
                    "name those whose `read` is true",
                )
        named = set(answer)
        return [cursor for cursor in there if cursor in named]

    def spawn_aux(self, look: Callable[[], View]) -> bool:
        """Ask whether to start an aux thread."""
        if not self._spawns:
            return False
        view = look()
        answer = self._call("spawn_aux", view.turn, lambda: self._policy.spawn_aux(view))
        if not isinstance(answer, bool):
            raise self._wrong("spawn_aux", view.turn, f"returns {shown(answer)}", "return True or False")
        return answer

    def summarise(self, look: Callable[[], View]) -> int:
        """Ask for the tokens of a summary; 0: none."""
        if not self._summarises:
            return 0
        view = look()
        answer = self._call("summarise", view.turn, lambda: self._policy.summarise(view))
        most = self._policy.aux.max_new_tokens
        if not _is_whole(answer) or not 0 <= answer <= max(most, 0):
            raise self._wrong(
                "summarise",
                view.turn,
                f"returns {shown(answer)}",
                f"return tokens, 0 to {most} (max_new_tokens of `aux`)",
            )
        return answer

    def decide(self, index: int, turn: int, cursors: Sequence[int]) -> Script:
        """Ask for the scripted output of aux thread `index`."""
        decisions = self._decisions
        assert decisions is not None, "asked only where decisions are scripted"
        answer = self._call("decide", turn, lambda: decisions.decide(index, turn, cursors))
        most = self._policy.aux.max_new_tokens
        whole = isinstance(answer, Script) and isinstance(answer.decision, Decision)
        if not (whole and _is_whole(answer.output_tokens) and isinstance(answer.decision.named, tuple | list)):
            raise self._wrong(
                "decide", turn, f"returns {shown(answer)}", "return Script(tokens, Decision((0, 2)))"
            )
        if not 1 <= answer.output_tokens <= most:
            raise self._wrong(
                "decide",
                turn,
                f"writes {answer.output_tokens} tokens",
                f"write 1 to {most} (max_new_tokens of `aux`)",
            )
        if not all(_is_whole(cursor) for cursor in answer.decision.named):
            raise self._wrong(
                "decide", turn, f"names {shown(answer.decision.named)}", "name whole numbers, int(x) each"
            )
        return answer

    def _call(self, method: str, turn: int, ask: Callable[[], Answer]) -> Answer:
        return asked(self._policy, f"{method} at turn {turn} of task {self._task!r}", ask)

    def _wrong(self, method: str, turn: int, problem: str, fix: str) -> PolicyError:
        return PolicyError(
            f"policy {self._policy.name}: {method} at turn {turn} of task {self._task!r} {problem}; {fix}"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(answer: Iterable[int] | None) -> list[int] | None:
    return None if answer is None else list(answer)


def _whole(value: object) -> str:
    """Say how to name a whole number; a NumPy integer is none of Python's own."""
    return "name whole numbers" + (
        f": int(x) for a {type(value).__name__}" if hasattr(value, "__index__") else ""
    )
