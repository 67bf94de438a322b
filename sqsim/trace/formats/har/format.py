# SPDX-License-Identifier: Apache-2.0
"""Importer of HAR recordings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from sqsim.errors import TraceError
from sqsim.trace.formats.base import Node, SourceFile
from sqsim.trace.formats.dialects import chat_answer, chat_messages
from sqsim.trace.formats.dialects.usage import Usage, usage_of
from sqsim.trace.formats.dialects.values import first_text, mapping
from sqsim.trace.formats.har.bodies import body_of
from sqsim.trace.formats.notes import Notes
from sqsim.trace.formats.request_log.exchange import Exchange, iso_s, noded, tools_of
from sqsim.trace.formats.request_log.format import RequestLog

_NO_CALLS = ("count_tokens", "embeddings", "moderations", "rerank", "input_tokens", "images", "audio", "files")
"""Parts of the addresses of requests that hold texts and call no chat model."""


class Har(RequestLog):
    """HAR: one task a conversation among the entries that call a chat model."""

    name = "har"

    def evidence(self, head: Sequence[Any]) -> str | None:
        if len(head) != 1 or not isinstance(head[0], dict) or not isinstance(head[0].get("log"), dict):
            return None
        entries = head[0]["log"].get("entries")
        if not isinstance(entries, list):
            return None
        requests = sum(isinstance(each, dict) and isinstance(each.get("request"), dict) for each in entries)
        if entries and not requests:
            return None
        return f"log.entries holds {requests} requests"

    def calls(self, file: SourceFile, notes: Notes) -> Iterator[Exchange]:
        number = found = 0
        for node in file.nodes():
            for entry in node.node("log").nodes("entries"):
                call = _call(file, entry, number, notes)
                number += 1
                if call is not None:
                    found += 1
                    yield call
        if not found:
            raise TraceError(
                f"looks like a HAR recording, but none of its {number} entries is an answered call of a chat model",
                file=file.path,
                fix="record the agent's requests to the model's API, with the texts of requests and responses",
            )


def _call(file: SourceFile, entry: Node, number: int, notes: Notes) -> Exchange | None:
    """Read an entry; None if it calls no chat model or failed."""
    request = mapping(entry.value, "request")
    response = mapping(entry.value, "response")
    body = body_of(request.get("postData"))
    messages = chat_messages(body) if _asks(body) and not _other(request.get("url")) else None
    if messages is None:
        notes["an entry that calls no chat model was left out"] += 1
        return None
    answer = body_of(response.get("content"))
    status = response.get("status")
    failed = isinstance(status, int) and (status >= 400 or status <= 0)
    if failed or (isinstance(answer, dict) and answer.get("error")):
        notes["a request that failed was left out"] += 1
        return None
    if answer is None:
        notes["a response that is neither JSON nor a known stream counts as not recorded"] += 1
        answer = {}
    said = chat_answer(answer)
    row = Node(answer, file.path, entry.line, f"{entry.path}.response.content.text")
    nodes, prints = noded(messages, Node(body, file.path, entry.line, f"{entry.path}.request.postData.text"))
    started = entry.get("startedDateTime")
    begins_s = iso_s(started) if isinstance(started, str) else None
    name, model = first_text(answer, "id", "responseId"), body.get("model")
    kept = _conversation(body)
    return Exchange(
        file=file,
        row=row,
        messages=nodes,
        prints=prints,
        response=None if said is None else Node(said, file.path, entry.line, row.path),
        name=name or f"{file.stem}:{number}",
        session=kept,
        model=model if isinstance(model, str) else first_text(answer, "model") or None,
        tools=tools_of(body.get("tools"), body.get("functions")),
        usage=_usage(row),
        begins_s=begins_s,
        ends_s=_ends_s(entry, begins_s),
        answer_id=name,
        continues=first_text(body, "previous_response_id") or (f"conversation:{kept}" if kept else ""),
    )


def _other(url: Any) -> bool:
    parts = urlsplit(url).path.split("/") if isinstance(url, str) and "[" not in url else []
    return any(part in _NO_CALLS for part in parts)


def _asks(body: Any) -> bool:
    """Whether a body is a request to a model: messages, or a text together with the model that shall read it."""
    return isinstance(body, dict) and bool({"messages", "contents", "model"} & body.keys())


def _conversation(body: dict[str, Any]) -> str:
    """Return the conversation that the server keeps, if the request names one."""
    named = body.get("conversation")
    named = named.get("id") if isinstance(named, dict) else named
    return named if isinstance(named, str) else ""


def _usage(answer: Node) -> Usage | None:
    for key in ("usage", "usageMetadata"):
        if isinstance(answer.get(key), dict):
            return usage_of(answer.node(key))
    return None


def _ends_s(entry: Node, begins_s: float | None) -> float | None:
    """Return the end of an entry, whose `time` is in milliseconds, -1 where it is not known."""
    took = entry.get("time")
    known = isinstance(took, int | float) and not isinstance(took, bool) and 0 <= took < 1e10
    return begins_s + took / 1e3 if known and begins_s is not None else None
