"""Answers of a policy that no policy may give: each ends the run, or its point of a sweep, with one line that names it."""

from __future__ import annotations

import os
from typing import Literal

import pytest
from numpy import int64

from sqsim.base.workers import Workers
from sqsim.errors import PolicyError, RunError
from sqsim.policies import AfterEviction, Policy, View
from sqsim.simulation.simulate import simulate
from tests.sqsim.policies.test_contract import Does, scenario
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
