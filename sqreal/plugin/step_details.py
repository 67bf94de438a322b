# SPDX-License-Identifier: Apache-2.0
"""Details of the step log: events inside a scheduling round, or while a result is processed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin import step_state, versions
from sqreal.plugin.event_log import EventLog
from sqreal.plugin.hooks import Hook

_ADAPTER = versions.adapter()
_BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
SESSIONS = "sqreal.plugin.sessions.Sessions"

Original = Callable[..., Any]


class StepDetails:
    """Hooks for admission tests, retractions, and the tree's insertions, evictions and releases."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._test: dict[str, Any] | None = None  # the current admission test
        self._leaves: list[int] = []  # of the current eviction

    def hooks(self) -> list[Hook]:
        """List the hooks of SGLang's methods."""
        hook = self._log.hook
        return [
            hook(f"{_ADDER}.add_one_req", "self req has_chunked_req truncation_align_size", self._admit),
            hook(f"{_ADDER}.add_chunked_req", "self req", self._chunk),
            hook(f"{_BATCH}.retract_decode", versions.signature("ScheduleBatch.retract_decode"), self._retract),
            *(hook(*each) for each in _ADAPTER.detail_hooks(self)),
            hook(f"{SESSIONS}.release_idle", "self name", self._release_idle),
            hook(f"{SESSIONS}.hold", "self name until", self._hold),
            hook(f"{SESSIONS}.let_go", "self name", self._let_go),
        ]

    # Admission tests and retractions.

    def _admit(self, original: Original, adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        test = self._test = {**step_state.admission(adder, req), **_ADAPTER.asked(adder, req)}
        answer = original(adder, req, *args, **kwargs)
        self._test = None
        test["res"] = answer.name
        test["ok"] = bool(adder.can_run_list and adder.can_run_list[-1] is req)
        if test["ok"]:
            test["extend"] = _ADAPTER.extend_len(req)
            test["offset_after"] = step_state.tokens(_ADAPTER.Budget(adder).promised)
        self._log.detail("adm", test)
        return answer

    def asked(self, words: dict[str, Any]) -> None:
        """Note the request to the budget, and the rest of the budget."""
        if self._test is not None:
            self._test |= words

    def _chunk(self, original: Original, adder: Any, req: Any) -> Any:
        test = step_state.chunk(adder, req)
        more = original(adder, req)
        test["extend"] = _ADAPTER.extend_len(req)
        test["more"] = more is not None
        test["offset_after"] = step_state.tokens(_ADAPTER.Budget(adder).promised)
        self._log.detail("adm", test)
        return more

    def _retract(self, original: Original, batch: Any, *args: Any) -> Any:
        rows = step_state.candidates(batch)
        need, before = batch.new_tokens_required_next_decode(), step_state.memory(batch.tree_cache)
        retracted, ratio, aborted = original(batch, *args)
        self._log.detail(
            "retract",
            {
                "batch": rows,
                "need": need,
                "mem0": before,
                "mem1": step_state.memory(batch.tree_cache),
                "retracted": step_state.rids(retracted),
                "aborted": step_state.rids(aborted),
                "ratio": round(float(ratio), 6),
                "kept": step_state.rids(batch.reqs),
            },
        )
        return retracted, ratio, aborted

    # The tree.

    def evict(self, original: Original, tree: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Note an eviction from the tree."""
        self._leaves, before = [], step_state.memory(tree)
        result = original(tree, params, *args, **kwargs)
        self._log.detail(
            "evict",
            {
                "ask": params.num_tokens,
                "ask_swa": params.swa_num_tokens,
                "got": result.num_tokens_evicted,
                "got_swa": result.swa_num_tokens_evicted,
                "leaves": self._leaves,
                "m0": before,
                "m1": step_state.memory(tree),
            },
        )
        return result

    def leaf(self, original: Original, tree: Any, node: Any, tracker: Any) -> Any:
        """Note the eviction of a leaf."""
        before = tracker[_ADAPTER.FULL]
        result = original(tree, node, tracker)
        self._leaves.append(tracker[_ADAPTER.FULL] - before)
        return result

    def insert(self, original: Original, tree: Any, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """Note the insertion of a request's tokens into the tree."""
        owned, before = req.kv.cache_protected_len, step_state.memory(tree)
        original(tree, req, up_to=up_to, **kwargs)
        owned = [owned, req.kv.cache_protected_len]
        after = step_state.memory(tree)
        self._log.detail(
            "ckpt",
            {"rid": req.rid, "up_to": up_to, "fin": req.finished(), "prot": owned, "m0": before, "m1": after},
        )

    def released(self, req: Any, tree: Any, release: Callable[[], Any]) -> Any:
        """Note that a request gives up its row by `release`, which returns whether its session keeps it."""
        row = step_state.released(tree, req)
        kept = release()
        self._log.detail("release", {**row, "session_kept": True} if kept else row)
        return kept

    def _release_idle(self, original: Original, sessions: Any, name: str) -> None:
        original(sessions, name)
        self._log.detail("released", name)

    def _hold(self, original: Original, sessions: Any, name: str, until: float) -> None:
        original(sessions, name, until)
        self._log.detail("held", name)

    def _let_go(self, original: Original, sessions: Any, name: str) -> None:
        original(sessions, name)
        self._log.detail("let_go", name)

    def touch(self, original: Original, tree: Any, key: Any) -> None:
        """Note that a prefix counts as used."""
        original(tree, key)
        self._log.detail("touch", len(key.token_ids))
