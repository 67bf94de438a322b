# SPDX-License-Identifier: Apache-2.0
"""Leave out calls that a resumed or forked session repeats from its origin: they were sent once."""

from __future__ import annotations

from collections.abc import Container

from sqsim.trace.formats.claude_code.chain import Chain
from sqsim.trace.formats.notes import Notes


def leave_out_copies(chain: Chain, seen: Container[tuple[str, str]], notes: Notes) -> int:
    """Start a chain at its first new call, whose prompt holds the copies. Returns the number of copies."""
    new = next((i for i, model in enumerate(chain.models) if model.key not in seen), len(chain.models))
    if not new:
        return 0
    notes["a call that another session's log holds too (resumed or forked) was left out there"] += new
    copied = chain.models[:new]
    texts = [chain.question]
    for model in copied:
        texts += [model.step.kept, model.step.reasoning, model.step.text]
        texts += [text for call in model.step.calls for text in (call.text, call.response or "")]
        texts.append(model.step.user)
    chain.question = "\n".join(text for text in texts if text)
    chain.question_other_tokens += sum(
        model.step.user_other_tokens + sum(call.other_tokens for call in model.step.calls) for model in copied
    )
    gone = {id(model.step) for model in copied}
    chain.models = chain.models[new:]
    chain.uses = [use for use in chain.uses if id(use.step) not in gone]
    if chain.models:
        first = chain.models[0]
        first.step.restarted, first.step.kept = False, ""
        chain.started_s = first.asked_s
    return new
