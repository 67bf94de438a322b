"""Where the messages of a conversation lie in the tokens that a chat template makes of them.

A template is a program; nothing says where a message begins. So parts of the list are rendered, and compared with the
whole: once for each message behind the last answer, once with another text for that answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqreal.plugin.chat_turn import ChatTurn, Drop
from sqreal.plugin.checks import WishError
from sqreal.plugin.history import common_prefix


class Template(Protocol):
    """A chat template. `prompt`: with the beginning of an answer behind the messages."""

    def render(self, messages: Sequence[Any], *, prompt: bool) -> list[int]: ...

    def message(self, role: str, text: str) -> Any: ...


def turn(messages: Sequence[Any], ids: list[int], template: Template, drop: Drop) -> ChatTurn:
    """A session's turn of these messages, the last of them not the assistant's, rendered as `ids` with a prompt."""
    answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
    if not answers:
        return ChatTurn(None, len(ids), 0, _ends(messages, ids, template, 0, 0), (), drop)
    answer = answers[-1]
    tail = _behind_answer(messages, ids, template, answer)
    closing = _closing(template)
    # Some templates close a call of tools otherwise; then the model has closed it itself.
    closed = len(closing) if tail[: len(closing)] == closing else 0
    ends = _ends(messages, ids, template, answer + 1, len(ids) - len(tail) + closed)
    return ChatTurn(answer, len(tail), closed, ends, _said(messages[answer]), drop)


def _ends(
    messages: Sequence[Any], ids: list[int], template: Template, first: int, start: int
) -> tuple[int, ...]:
    """Where each message from `first` on ends: there the list up to it and the whole list are rendered apart."""
    ends: list[int] = []
    for count in range(first + 1, len(messages) + 1):
        end = common_prefix(template.render(messages[:count], prompt=False), ids)
        if end <= (ends[-1] if ends else start):
            raise WishError(
                f"messages: the chat template renders message {count - 1} ({messages[count - 1].role}) otherwise when "
                "others follow; use /generate for such a conversation"
            )
        ends.append(end)
    return tuple(ends)


def _behind_answer(messages: Sequence[Any], ids: list[int], template: Template, answer: int) -> list[int]:
    """What is rendered behind an answer's text, its closing and later messages: the same whatever the answer was."""
    text = "1" if _text(messages[answer]).rstrip().endswith("0") else "0"
    other = [*messages[:answer], template.message("assistant", text), *messages[answer + 1 :]]
    rendered = template.render(other, prompt=True)
    if rendered == ids:
        raise WishError(
            f"messages: the chat template leaves out what the assistant said in message {answer}; "
            "use /generate for such a conversation"
        )
    return _common_suffix(rendered, ids)


def _closing(template: Template) -> list[int]:
    """What the template puts behind an answer's text, before the next message."""
    asked = template.message("user", "x")
    one, other = (template.render([asked, template.message("assistant", text)], prompt=False) for text in "01")
    return _common_suffix(one, other)


def _said(message: Any) -> tuple[str, ...]:
    """What of an assistant message has to occur in what the model said: its text, and the names of called tools."""
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
