# SPDX-License-Identifier: Apache-2.0
"""Count each model call and tool run once, though several instrumentations recorded it.

A framework's span around its client's, two instrumentations of one client, or two exporters give several spans of one call.
The innermost span is the call; what it lacks is taken from the one around it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, print_of
from sqsim.trace.formats.spans.observed import Observed

if TYPE_CHECKING:
    from sqsim.trace.formats.spans.tree import Tree

_SLACK_S = 0.1
"""Begins and ends of two spans of one call differ by less (assumed)."""


def without_copies(tree: Tree, notes: Notes) -> None:
    """Turn the spans that repeat another one's call or run into spans that only hold others."""
    _nested_calls(tree, notes)
    _equal_calls(tree, notes)
    _nested_runs(tree, notes)


def _nested_calls(tree: Tree, notes: Notes) -> None:
    around: dict[tuple[str, str], list[Observed]] = defaultdict(list)
    for each in tree.models():
        for above in tree.above(each):
            if above.kind in {"tool", "agent"}:
                break
            if above.kind == "model":
                around[above.key].append(each)
    for key in sorted(around, key=lambda key: len(around[key])):  # inner ones first
        outer = tree.by_key[key]
        inner = [each for each in around[key] if each.kind == "model"]
        if len(inner) == 1:
            _complete(inner[0].call, outer.call)
            notes["a call that two spans recorded, one within the other, counts once"] += 1
        else:
            notes["a span around several model calls is no call of its own"] += 1
        outer.kind, outer.call = "other", None


def _equal_calls(tree: Tree, notes: Notes) -> None:
    """Drop calls with the response's id of another, or with its texts and times."""
    by_id: dict[str, list[Observed]] = defaultdict(list)
    by_text: dict[tuple[object, ...], list[Observed]] = defaultdict(list)
    for each in tree.models():
        call = each.call
        if call is None:
            continue
        named = by_id[call.answer_id] if call.answer_id else []
        # The conventions write the same texts differently; so times and counts tell, where the ids are not known.
        text = (each.trace, call.usage) if call.usage is not None else (each.trace, call.prints, _said(call))
        same = next((other for other in named if _same_answer(call, other.call)), None)
        same = same or next((other for other in by_text[text] if _at_once(call, other.call)), None)
        if same is not None:
            _complete(same.call, call)
            notes["a call that two instrumentations recorded counts once"] += 1
            each.kind, each.call = "other", None
            continue
        named.append(each)
        by_text[text].append(each)


def _same_answer(one: Exchange, other: Exchange | None) -> bool:
    """Whether two calls whose responses have one id are one; servers in tests give every response the same id."""
    return other is not None and (one.prints == other.prints or _close(one, other))


def _close(one: Exchange, other: Exchange) -> bool:
    """Whether two calls began and ended at the same time."""
    if one.begins_s is None or other.begins_s is None or one.ends_s is None or other.ends_s is None:
        return False
    return abs(one.begins_s - other.begins_s) < _SLACK_S and abs(one.ends_s - other.ends_s) < _SLACK_S


def _said(call: Exchange) -> str:
    return "" if call.response is None else print_of(call.response.value)


def _at_once(one: Exchange, other: Exchange | None) -> bool:
    """Whether two calls began and ended at the same time and their texts, as far as recorded, are equal."""
    if other is None or not _close(one, other) or one.ends_s == one.begins_s:
        return False
    if one.answer_id and other.answer_id and one.answer_id != other.answer_id:
        return False
    if not (one.messages or other.messages):
        return False  # counts alone do not tell two calls at once apart
    return not (one.messages and other.messages) or _words(one) == _words(other)


def _words(call: Exchange) -> str:
    """Return the texts of a call's prompt without spaces; the conventions write what is around them differently."""
    texts: list[str] = []
    for message in call.messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                texts.append(text)
    return "".join("".join(texts).split())


def _complete(call: Exchange | None, other: Exchange | None) -> None:
    """Give a call what another record of it knows and its own lacks."""
    if call is None or other is None:
        return
    if not call.messages:
        call.messages, call.prints = other.messages, other.prints
    call.response = call.response or other.response
    call.usage = call.usage or other.usage
    call.tools = call.tools or other.tools
    call.model = call.model or other.model
    call.answer_id = call.answer_id or other.answer_id
    call.begins_s = other.begins_s if call.begins_s is None else call.begins_s
    call.ends_s = other.ends_s if call.ends_s is None else call.ends_s


def _nested_runs(tree: Tree, notes: Notes) -> None:
    """Drop the span of a tool within another tool's, unless the outer one runs a model, which called the inner."""
    agents = {above.key for each in tree.models() for above in tree.above(each)}
    for each in [each for each in tree.by_key.values() if each.kind == "tool"]:
        for above in tree.above(each):
            if above.kind in {"model", "agent"} or above.key in agents:
                break
            if above.kind == "tool" and above.run is not None and each.run is not None:
                notes["a tool's run within another tool's run is part of it"] += 1
                above.run.response = above.run.response or each.run.response
                above.run.call_id = above.run.call_id or each.run.call_id
                each.kind, each.run = "other", None
                break
