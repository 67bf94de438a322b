# SPDX-License-Identifier: Apache-2.0
"""Import LangSmith runs: lists or lines of runs, trees of `child_runs`, and the SDK's batches of `post` and `patch`.

Source: `RunBase` and `Run` of the langsmith SDK's schemas. Runs of the type `llm` are the calls, `tool` the tools' runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.dialects import chat_answer, chat_messages
from sqsim.trace.formats.dialects.usage import Usage, usage_of
from sqsim.trace.formats.dialects.values import as_text, mapping
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, noded, time_s, tools_of
from sqsim.trace.formats.request_log.tool_runs import ToolRun
from sqsim.trace.formats.spans.observed import Kind, Observed
from sqsim.trace.formats.spans.tree import MOST_DEPTH, ObservedFormat

_KINDS: dict[str, Kind] = {"llm": "model", "tool": "tool"}
_SESSIONS = ("session_id", "thread_id", "conversation_id")


class LangSmith(ObservedFormat):
    """LangSmith: one task a conversation of an agent."""

    name = "langsmith"
    title = "LangSmith runs"

    def evidence(self, head: Sequence[Any]) -> str | None:
        found = [run for value in head for run in _rows(value)]
        known = sum(isinstance(run, dict) and isinstance(run.get("run_type"), str) for run in found)
        if not known or 2 * known < len(found):
            return None
        return f"{known} of the first {len(found)} records are runs with a run_type"

    def observed(self, file: SourceFile, notes: Notes) -> Iterator[Observed]:
        whole: dict[str, tuple[Node, dict[str, Any]]] = {}
        for node in file.nodes():
            for run in _with_children(_rows(node.value)):
                if not isinstance(run, dict) or not isinstance(run.get("id"), str):
                    notes["a record that is no run was left out"] += 1
                    continue
                known = {key: value for key, value in run.items() if value not in (None, {}, [])}
                place, before = whole.get(run["id"], (node, {}))
                whole[run["id"]] = place, {**before, **known}
        for place, run in whole.values():
            seen = _observed(file, Node(run, file.path, place.line, run["id"][:40]))
            if seen.kind == "other":
                notes["a run that is no call of a model or tool holds the others together only"] += 1
            yield seen


def _rows(value: Any) -> list[Any]:
    """List the runs of a value: a list, one run, or a batch."""
    if isinstance(value, dict) and "run_type" not in value:
        parts = [value[key] for key in ("runs", "post", "patch") if isinstance(value.get(key), list)]
        if parts:
            return [run for part in parts for run in part]
    return value if isinstance(value, list) else [value]


def _with_children(runs: Sequence[Any]) -> Iterator[Any]:
    """Yield runs and the runs within them."""
    waiting = [(run, 0) for run in reversed(runs)]
    while waiting:
        run, depth = waiting.pop()
        yield run
        children = run.get("child_runs") if isinstance(run, dict) else None
        if isinstance(children, list) and depth < MOST_DEPTH:
            for child in reversed(children):
                if isinstance(child, dict) and child.get("parent_run_id") is None:
                    child = {**child, "parent_run_id": run.get("id")}
                if isinstance(child, dict) and child.get("trace_id") is None:
                    child = {**child, "trace_id": run.get("trace_id") or run.get("id")}
                waiting.append((child, depth + 1))


def _observed(file: SourceFile, place: Node) -> Observed:
    run = place.value
    extra = mapping(run, "extra")
    metadata = mapping(extra, "metadata")
    seen = Observed(
        file=file,
        trace=str(run.get("trace_id") or run["id"]),
        name=run["id"],
        parent=str(run.get("parent_run_id") or ""),
        kind=_KINDS.get(str(run.get("run_type")), "other"),
        begins_s=time_s(run, ("start_time",)),
        ends_s=time_s(run, ("end_time",)),
        session=next((str(metadata[key]) for key in _SESSIONS if metadata.get(key)), ""),
        failed=bool(run.get("error")),
    )
    outputs = mapping(run, "outputs")
    if seen.kind == "model":
        inputs = mapping(run, "inputs")
        params = mapping(extra, "invocation_params")
        nodes, prints = noded(
            chat_messages(inputs) or [], Node(inputs, file.path, place.line, f"{place.path}.inputs")
        )
        answer = chat_answer(outputs)
        model = metadata.get("ls_model_name") or inputs.get("model")
        name = outputs.get("id")
        seen.call = Exchange(
            file=file,
            row=place,
            messages=nodes,
            prints=prints,
            response=None if answer is None else Node(answer, file.path, place.line, f"{place.path}.outputs"),
            name=seen.name,
            model=model if isinstance(model, str) else None,
            tools=tools_of(inputs.get("tools") or params.get("tools")),
            usage=_usage(place, outputs, answer),
            begins_s=seen.begins_s,
            ends_s=seen.ends_s,
            answer_id=name if isinstance(name, str) else "",
        )
    elif seen.kind == "tool":
        seen.run = _run(run, outputs, seen)
    return seen


def _run(run: dict[str, Any], outputs: dict[str, Any], seen: Observed) -> ToolRun:
    value = outputs.get("output", outputs) if outputs else None
    message = next(iter(chat_messages([value]) or []), {}) if isinstance(value, dict) else {}
    call_id = message.get("tool_call_id") if message.get("role") == "tool" else ""
    if call_id:
        value = message.get("content")
    return ToolRun(
        name=seen.name,
        tool=str(run.get("name") or "tool"),
        call_id=call_id if isinstance(call_id, str) else "",
        begins_s=seen.begins_s,
        ends_s=seen.ends_s,
        error=str(run["error"]).split("\n", 1)[0][:200] if seen.failed else None,
        arguments=run.get("inputs"),
        response=None if value is None else as_text(value),
    )


def _usage(place: Node, outputs: dict[str, Any], answer: dict[str, Any] | None) -> Usage | None:
    llm = mapping(outputs, "llm_output")
    given = (
        outputs.get("usage_metadata"),
        (answer or {}).get("usage"),
        outputs.get("usage"),
        llm.get("token_usage"),
        llm.get("usage"),
    )
    for usage in given:
        if isinstance(usage, dict):
            found = usage_of(Node(usage, place.file, place.line, f"{place.path}.outputs.usage"))
            if found is not None:
                return found
    found = usage_of(place)
    return found if found is not None and (found.prompt or found.output) else None
