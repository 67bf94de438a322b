# SPDX-License-Identifier: Apache-2.0
"""Place a compaction's own model call, which newer versions log as an agent of its own (`agent-acompact-*`)."""

from __future__ import annotations

from collections.abc import Iterable

from sqsim.trace.formats.claude_code.chain import Chain
from sqsim.trace.formats.notes import Notes

_ASKED = "Your task is to create a detailed summary of"


def is_compaction(name: str, side: Chain) -> bool:
    """Whether an agent wrote the summary of another's context."""
    return "acompact" in name or _ASKED in side.question[-20_000:]


def put_before_reset(side: Chain, mains: Iterable[Chain], notes: Notes) -> bool:
    """Make a compaction's calls steps before the reset that they caused; False if there is no such reset.

    They read the session's whole context, so they share its cached prompt, and grow it by the request for the summary.
    """
    begun_s = side.started_s or 0.0
    for main in mains:
        place = next(
            (i for i, model in enumerate(main.models) if i and model.compacted and model.begun_s >= begun_s),
            None,
        )
        if place is None and main.models and main.ended_s <= begun_s:
            place = len(main.models)
        if place is None or main.models[place - 1].begun_s > begun_s:
            continue
        before = main.models[place - 1].step
        before.user = "\n".join(text for text in (before.user, side.question) if text)
        before.user_other_tokens += side.question_other_tokens
        last = side.models[-1].step
        last.user_wait_s += before.user_wait_s
        before.user_wait_s = max(0.0, round(begun_s - main.last_before(begun_s), 3))
        main.models[place:place] = side.models
        main.uses += side.uses
        notes["a compaction's own call was put before the reset that it made"] += len(side.models)
        return True
    return False
