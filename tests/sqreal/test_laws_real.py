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
from tests.sqreal.replays import CLEARING, POLICIES

pytestmark = pytest.mark.real

QUIET_TASKS = 10
"""The committed matrix (conformance.py) has 20."""


def servers(model: str):
    """A fixture of one class: its servers, one after the other."""
    params = [
        pytest.param(each, id=str(each), marks=() if each in PAIRWISE else pytest.mark.long)
        for each in EVERY
        if each.model == model
    ]

    @pytest.fixture(scope="class", params=params)
    @classmethod
    def served(cls, request, tmp_path_factory):
        configuration: Configuration = request.param
        with configuration.server(tmp_path_factory.mktemp(str(configuration))) as server:
            yield configuration, server

    return served


def _skip_without_sessions(configuration: Configuration, policy: str) -> None:
    if policy not in configuration.policies:
        pytest.skip(f"{policy} pins sessions, and there are none")


@pytest.mark.parametrize("policy", POLICIES)
class Laws:
    def test_uncontended_every_turn_accounts_for_the_same_tokens(self, served, tmp_path, policy):
        _skip_without_sessions(served[0], policy)
        found = quiet(*served, policy, tmp_path, QUIET_TASKS)
        assert found.differences == []
        assert found.tasks == QUIET_TASKS
        assert found.cached_tokens > 0
        assert (found.aux > 0) == (policy in {"sidequest", "compaction"})
        assert (found.evictions > 0) == (policy in CLEARING)
        if served[0].chunk < 8192:
            assert found.prefill_chunks > found.turns

    def test_contended_every_batch_is_the_same(self, served, tmp_path, policy):
        _skip_without_sessions(served[0], policy)
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
    served = servers("tiny-llama")


class TestGptOss(Laws):
    served = servers("tiny-gpt-oss")
