# SPDX-License-Identifier: Apache-2.0
"""Checks of a policy's gate: an answer that would strand agents ends the run with an error that names the policy."""

from __future__ import annotations

from typing import Any

from sqsim.errors import PolicyError
from sqsim.policies.base import Gate, Policy
from sqsim.policies.contract.asking import asked, shown


class CheckedGate:
    """A gate whose every answer is checked. PolicyError: it raised an exception, broke its protocol, or paused everyone."""

    def __init__(self, policy: Policy, gate: Gate) -> None:
        self._policy, self._gate = policy, gate
        self._active: set[str] = set()
        self._paused: set[str] = set()
        for method in ("ask", "resume", "leave"):
            if not callable(getattr(gate, method, None)):
                raise self._wrong(
                    "gate",
                    f"returns {shown(gate)}, which has no {method}",
                    "return a sqsim.policies.Gate, or None",
                )

    def ask(self, name: str, tokens: int, *, may_pause: bool = True) -> bool:
        """Let an agent go on (True), or pause it (False)."""
        passed: Any = asked(self._policy, "gate.ask", lambda: self._gate.ask(name, tokens, may_pause=may_pause))
        if not isinstance(passed, bool):
            raise self._wrong("gate.ask", f"returns {shown(passed)}", "return True or False")
        if not (passed or may_pause):
            raise self._wrong(
                "gate.ask", f"pauses {name!r}, which may not pause", "return True where may_pause is False"
            )
        self._active.discard(name)
        (self._active if passed else self._paused).add(name)
        return passed

    def leave(self, name: str) -> None:
        """Forget an agent that has ended."""
        asked(self._policy, "gate.leave", lambda: self._gate.leave(name))
        self._active.discard(name)

    def resume(self) -> list[str]:
        """Let paused agents go on; returns their names."""
        answer: Any = asked(self._policy, "gate.resume", self._gate.resume)
        if not isinstance(answer, list) or not all(isinstance(name, str) for name in answer):
            raise self._wrong("gate.resume", f"returns {shown(answer)}", "return a list of names, [] for none")
        for name in answer:
            if name not in self._paused:
                raise self._wrong(
                    "gate.resume", f"names {shown(name)}, which is not paused", "name each paused agent once"
                )
            self._paused.remove(name)
            self._active.add(name)
        if self._paused and not self._active:
            raise self._wrong(
                "gate.resume",
                f"leaves all agents paused: {shown(sorted(self._paused))}",
                "let one go on, as the run would never end",
            )
        return answer

    def _wrong(self, method: str, problem: str, fix: str) -> PolicyError:
        return PolicyError(f"policy {self._policy.name}: {method} {problem}; {fix}")
