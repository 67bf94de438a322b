# SPDX-License-Identifier: Apache-2.0
"""Places of a conversation's messages in the tokens that a chat template renders.

A template is a program and does not report where a message begins. So parts of the list are rendered and compared with
the whole: once for each message after the last answer, once with another text for that answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqreal.plugin.chat_turn import ChatTurn, Drop
from sqreal.plugin.checks import BadRequestError
from sqreal.plugin.history import common_prefix


class Template(Protocol):
    """Chat template. `prompt`: with the beginning of an answer after the messages."""

    def render(self, messages: Sequence[Any], *, prompt: bool) -> list[int]: ...

    def message(self, role: str, text: str) -> Any: ...


def turn(messages: Sequence[Any], ids: list[int], template: Template, drop: Drop) -> ChatTurn:
    """Make a session's turn of these messages, the last not the assistant's, rendered as `ids` with a prompt."""
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    if not answers:
        return ChatTurn(None, len(ids), 0, _ends(messages, ids, template, 0, 0), (), drop)
    answer = answers[-1]
    tail = _behind_answer(messages, ids, template, answer)
    closing = _closing(template)
    # Some templates close a tool call differently; then the model has closed it itself.
    closed = len(closing) if tail[: len(closing)] == closing else 0
    ends = _ends(messages, ids, template, answer + 1, len(ids) - len(tail) + closed)
    return ChatTurn(answer, len(tail), closed, ends, _said(messages[answer]), drop)


def _ends(
    messages: Sequence[Any], ids: list[int], template: Template, first: int, start: int
) -> tuple[int, ...]:
    """Find the end of each message from `first` on: where the renderings of the list up to it and of the whole list part."""
    ends: list[int] = []
    for count in range(first + 1, len(messages) + 1):
        end = common_prefix(template.render(messages[:count], prompt=False), ids)
        if end <= (ends[-1] if ends else start):
            raise BadRequestError(
                f"messages: the chat template renders message {count - 1} ({messages[count - 1].role}) differently when "
                "others follow; use /generate for such a conversation"
            )
        ends.append(end)
    return tuple(ends)


def _behind_answer(messages: Sequence[Any], ids: list[int], template: Template, answer: int) -> list[int]:
    """Render what follows an answer's text, its closing and later messages: the same for every answer."""
    text = "1" if _text(messages[answer]).rstrip().endswith("0") else "0"
    other = [*messages[:answer], template.message("assistant", text), *messages[answer + 1 :]]
    rendered = template.render(other, prompt=True)
    if rendered == ids:
        raise BadRequestError(
            f"messages: the chat template leaves out the assistant's text of message {answer}; "
            "use /generate for such a conversation"
        )
    return _common_suffix(rendered, ids)


def _closing(template: Template) -> list[int]:
    """Render the closing of an answer, between its text and the next message."""
    asked = template.message("user", "x")
    one, other = (template.render([asked, template.message("assistant", text)], prompt=False) for text in "01")
    return _common_suffix(one, other)


def _said(message: Any) -> tuple[str, ...]:
    """List the parts of an assistant message that the model's output must contain: its text, and the names of called tools."""
    names = [call.function.name or "" for call in getattr(message, "tool_calls", None) or ()]
    return tuple(text for text in (_text(message), *names) if text)


def _text(message: Any) -> str:
    content = message.content
    if isinstance(content, list):
        return "".join(getattr(part, "text", "") for part in content)
    return content or ""


def _common_suffix(one: list[int], other: list[int]) -> list[int]:
    same = common_prefix(one[::-1], other[::-1])
    return one[len(one) - same :]
