# SPDX-License-Identifier: Apache-2.0
"""Answers of a policy that no policy may give: each ends the run, or its point of a sweep, with one line that names it."""

from __future__ import annotations

import os
from typing import Literal

import pytest
from numpy import int64

from sqsim.base.workers import Workers
from sqsim.errors import PolicyError, RunError
from sqsim.policies import AfterEviction, Policy, View
from sqsim.policies.contract.choices import choices_of
from sqsim.simulation.simulate import simulate
from tests.sqsim.policies.test_contract import Does, scenario
from tests.sqsim.policies.test_definition import defined
from tests.sqsim.tasks import chain


class Keeps(Policy):
    """Forgets that keys are frozen."""

    name: Literal["keeps"] = "keeps"
    after_eviction: AfterEviction = "reprefill"
    seen: int = 0

    def evict(self, view: View):
        self.seen += 1
        return []


def raises(error: BaseException):
    def act(_: View):
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (raises(SystemExit(0)), r"evict at turn 0 of task 't' raised SystemExit: 0; repair the policy$"),
        (raises(GeneratorExit()), r"evict at turn 0 of task 't' raised GeneratorExit; repair the policy$"),
        (raises(ValueError("one\ntwo")), r"raised ValueError: one; repair the policy$"),
        (raises(ValueError("x" * 5000)), r"raised ValueError: x{185}\.\.\.; repair the policy$"),
        (lambda _: None, r"evict at turn 0 of task 't' returns None; return a list, \[\] for none$"),
        (lambda _: [int64(0)], r"names .*0.*, which is no cursor; name whole numbers: int\(x\) for a int64$"),
    ],
)
def test_what_a_policy_raises_is_one_line_that_names_it(tmp_path, monkeypatch, act, message):
    monkeypatch.setattr(Does, "acts", {"evict": act})
    with pytest.raises(PolicyError, match=message):
        simulate(scenario(tmp_path, [chain(4)]), policy=Does())


def test_the_user_may_still_interrupt_a_policy(tmp_path, monkeypatch):
    monkeypatch.setattr(Does, "acts", {"evict": raises(KeyboardInterrupt())})
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario(tmp_path, [chain(4)]), policy=Does())


def test_a_policy_that_assigns_to_a_key_is_told_of_private_attributes(tmp_path):
    with pytest.raises(PolicyError, match=r"'seen', but keys are frozen; declare a PrivateAttr"):
        simulate(scenario(tmp_path, [chain(4)]), policy=Keeps())


def test_an_exit_is_the_error_of_its_own_item():
    ((_, first),) = Workers(1).each(leave, [0])
    assert isinstance(first, RunError)
    assert "SystemExit: 0" in str(first)


def leave(code: int) -> None:
    raise SystemExit(code)


def test_a_worker_process_that_ends_is_named_as_that():
    with pytest.raises(RunError, match=r"^a worker process ended in the middle of a run"):
        list(Workers(2).each(os._exit, [1, 1]))


GATE = """
def gate(self, capacity_tokens):
    class Gate:
        def ask(self, name, tokens, *, may_pause=True): return {ask}
        def leave(self, name): {leave}
        def resume(self): return {resume}
    return Gate()
"""


def gate(ask: str = "True", leave: str = "pass", resume: str = "[]") -> str:
    return GATE.strip().format(ask=ask, leave=leave, resume=resume)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def gate(self, capacity_tokens): return 5", "gate returns 5, which has no ask"),
        (gate(ask="None"), "gate.ask returns None; return True or False"),
        (gate(ask="1 / 0"), "gate.ask raised ZeroDivisionError"),
        (gate(leave="1 / 0"), "gate.leave raised ZeroDivisionError"),
        (gate(resume="None"), r"gate.resume returns None; return a list of names, \[\] for none"),
        (gate(resume="['z']"), "gate.resume names 'z', which is not paused"),
        (gate(ask="False"), "gate.resume leaves all agents paused"),
        ("_file: Any = PrivateAttr(default_factory=lambda: (each for each in ()))", "a copy of its private attributes .* raised TypeError"),
        ("needs_references = property(lambda _: True)\ndef with_hindsight(self, task): pass", "with_hindsight for task 't' returns None"),
        ("needs_references = property(lambda _: True)\ndef with_hindsight(self, task): 1 / 0", "with_hindsight for task 't' raised"),
    ],
)  # fmt: skip
def test_an_answer_that_no_run_can_use_is_named(tmp_path, body, message):
    with pytest.raises(PolicyError, match=rf"policy p: {message}[^\n]*$"):
        simulate(scenario(tmp_path, [chain(4, uses={4: (0,)})]), policy=defined(body)())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("5", "choices gives 5; return a list of Choice"),
        ("1 / 0", "choices raised ZeroDivisionError"),
        ("[Choice('x', 'radx', {})]", "give cache radix or session"),
        ("[Choice('x', 'radix', {'zz': 3})]", "zz: Extra inputs"),
        ("[Choice(3, 'radix', {})]", "give it a name"),
    ],
)
def test_choices_that_do_not_exist_are_named(answer, message):
    kind = defined(f"@classmethod\ndef choices(cls, ks): return {answer}")
    with pytest.raises(PolicyError, match=rf"^policy p: choices [^\n]*{message}[^\n]*$|^policy p: {message}"):
        choices_of(kind, (1,))
