# SPDX-License-Identifier: Apache-2.0
"""Where messages lie in a rendered list, by templates that join, wrap and rewrite as published ones do."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from sqreal.plugin.checks import BadRequestError
from sqreal.plugin.rendering import turn


def message(role, text, calls=()):
    tools = [SimpleNamespace(function=SimpleNamespace(name=name)) for name in calls]
    return SimpleNamespace(role=role, content=text, tool_calls=tools or None)


class ChatML:
    """Each message by itself, closed by `]`, a newline behind."""

    def text(self, messages, prompt):
        return "".join(map(self.one, messages)) + ("[assistant " if prompt else "")

    def one(self, each):
        calls = "".join(f"<call {call.function.name}>" for call in each.tool_calls or ())
        return f"[{each.role} {each.content or ''}{calls}]\n"

    def render(self, messages, *, prompt):
        return list(map(ord, self.text(messages, prompt)))

    def message(self, role, text):
        return message(role, text)


class Joined(ChatML):
    """As Qwen3: tool responses in a row are one message, and the last answer has room for a thought."""

    def text(self, messages, prompt):
        found = ""
        for place, each in enumerate(messages):
            last = place + 1 == len(messages)
            if each.role == "tool":
                opened = place and messages[place - 1].role == "tool"
                closed = last or messages[place + 1].role != "tool"
                found += ("" if opened else "[user") + f"\n<{each.content}>" + ("]\n" if closed else "")
            elif each.role == "assistant" and last:
                found += f"[assistant (){each.content}]\n"
            else:
                found += self.one(each)
        return found + ("[assistant " if prompt else "")


class Unclosed(ChatML):
    """As gpt-oss: a call of a tool ends otherwise than an answer, and nothing stands between messages."""

    def one(self, each):
        return f"[{each.role} {each.content or ''}" + ("!" if each.tool_calls else "]")


class Forgetful(ChatML):
    """The last message alone is shown."""

    def text(self, messages, prompt):
        return "".join(f"[{each.role}]" for each in messages[:-1]) + self.one(messages[-1])


class NewestFirst(ChatML):
    def text(self, messages, prompt):
        return "".join(map(self.one, reversed(messages))) + ("[assistant " if prompt else "")


CONVERSATION = [
    message("system", "s"),
    message("user", "u"),
    message("assistant", "answer 0", ["open", "find"]),
    message("tool", "first"),
    message("tool", "second"),
]


def pieces(template, messages=CONVERSATION):
    """The closing of the answer, the messages behind it, and the beginning of the next answer, as text."""
    text = template.text(messages, prompt=True)
    found = turn(messages, list(map(ord, text)), template, ())
    start = len(text) - found.tail
    bounds = [start + found.closing, *found.ends, len(text)]
    return text[start : bounds[0]], *(text[a:b] for a, b in pairwise(bounds))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (ChatML(), ("]\n", "[tool first]\n", "[tool second]\n", "[assistant ")),
        (Joined(), ("]\n", "[user\n<first>", "\n<second>]\n", "[assistant ")),
        (Unclosed(), ("", "[tool first]", "[tool second]", "[assistant ")),
    ],
)
def test_every_message_behind_the_answer_has_its_piece(template, expected):
    assert pieces(template) == expected


def test_without_an_answer_every_message_has_its_piece():
    assert pieces(ChatML(), CONVERSATION[:2]) == ("", "[system s]\n", "[user u]\n", "[assistant ")


def test_what_the_answer_has_to_hold():
    ids = list(map(ord, ChatML().text(CONVERSATION, prompt=True)))
    found = turn(CONVERSATION, ids, ChatML(), ((2, 1),))
    assert (found.answer, found.said, found.drop) == (2, ("answer 0", "open", "find"), ((2, 1),))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (Forgetful(), "the chat template leaves out the assistant's text of message 2"),
        (NewestFirst(), r"renders message 3 \(tool\) differently when others follow"),
    ],
)
def test_a_template_that_does_not_append_is_refused_by_the_message(template, says):
    ids = list(map(ord, template.text(CONVERSATION, prompt=True)))
    with pytest.raises(BadRequestError, match=says):
        turn(CONVERSATION, ids, template, ())
