# SPDX-License-Identifier: Apache-2.0
"""Laws 10 and 11 on a real SGLang; see conformance.py. CI has four servers, `make test-long` all sixteen, eight of them with sessions."""

from __future__ import annotations

import pytest

from tests.sqreal.conformance import (
    EVERY,
    PAIRWISE,
    Configuration,
    crowded,
    quiet,
)
from tests.sqreal.replays import CLEARING

pytestmark = pytest.mark.real

QUIET_TASKS = 10
"""The committed matrix (conformance.py) has 20."""


IN_CI = {"none", "keep_last", "sidequest"}
"""Policies that CI runs on all of its servers; the others run on the first and the last of them."""


def _marks(configuration: Configuration, policy: str):
    ends = (PAIRWISE[0], PAIRWISE[-1])
    return () if configuration in (PAIRWISE if policy in IN_CI else ends) else pytest.mark.long


def pytest_generate_tests(metafunc):
    """Every server of a class with every policy that it can run; one server serves all of its tests."""
    pairs = [
        pytest.param(each, policy, id=f"{each}-{policy}", marks=_marks(each, policy))
        for each in EVERY
        if each.model == metafunc.cls.model
        for policy in each.policies
    ]
    metafunc.parametrize(("served", "policy"), pairs, indirect=["served"], scope="class")


@pytest.fixture(scope="class")
def served(request, tmp_path_factory):
    configuration: Configuration = request.param
    with configuration.server(tmp_path_factory.mktemp(str(configuration))) as server:
        yield configuration, server


class Laws:
    model: str

    def test_uncontended_every_turn_accounts_for_the_same_tokens(self, served, tmp_path, policy):
        found = quiet(*served, policy, tmp_path, QUIET_TASKS)
        assert found.differences == []
        assert found.tasks == QUIET_TASKS
        assert found.cached_tokens > 0
        assert (found.aux > 0) == (policy in {"sidequest", "compaction"})
        assert (found.evictions > 0) == (policy in CLEARING)
        if served[0].chunk < 8192:
            assert found.prefill_chunks > found.turns

    def test_contended_every_batch_is_the_same(self, served, tmp_path, policy):
        found = crowded(*served, policy, tmp_path)
        assert found.differences == []
        assert (found.pauses > 0) == (policy == "pause")
        assert (found.held_sessions > 0) == (policy == "pin_ttl")
        if policy == "pause":  # it keeps the pool from what the others bring about
            return
        assert found.queued_steps > 0
        assert found.reclaimed_tokens > 0
        assert (found.released_sessions > 0) == (served[0].cache == "session")
        if (
            served[0].model == "tiny-gpt-oss" and policy != "compaction"
        ):  # llama's one pool is outgrown by what comes at about the same time only
            assert found.retractions > 0


class TestLlama(Laws):
    model = "tiny-llama"


class TestGptOss(Laws):
    model = "tiny-gpt-oss"
