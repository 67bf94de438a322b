# SPDX-License-Identifier: Apache-2.0
"""A client that holds a conversation through /v1/chat/completions in a session, and knows which tokens it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from sqreal.replay.byte_tokenizer import BEGIN, END, encode
from sqreal.server.client import Call, Client, Generation
from tests.sqreal.served import Served

OUT = 6  # tokens of an answer; ignore_eos lets none end it earlier


@dataclass(frozen=True)
class Answer:
    text: str
    usage: dict[str, Any]


def message(role: str, content: str) -> dict[str, Any]:
    more = {"tool_call_id": "1"} if role == "tool" else {}
    return {"role": role, "content": content, **more}


def rendered(each: dict[str, Any]) -> list[int]:
    """A message as the template of byte_tokenizer renders it."""
    return [BEGIN, *encode(f"{each['role']}\n{each['content']}"), END, *encode("\n")]


class ChatAgent:
    """`told`: what each turn adds to the session by the template, worked out here."""

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        self.http, self.session, self.out = http, session, OUT
        self.messages: list[dict[str, Any]] = []
        self.told: list[list[int]] = []
        self.answers: list[Answer] = []

    def body(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return {
            "model": "tiny",
            "messages": messages,
            "temperature": 0.0,
            "max_tokens": OUT,
            "ignore_eos": True,
            "session_params": {"id": self.session},
            **fields,
        }

    async def post(self, messages: list[dict[str, Any]], **fields: Any) -> Answer:
        answer = await self.http.post("/v1/chat/completions", json=self.body(messages, **fields))
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return Answer(found["choices"][0]["message"]["content"] or "", found["usage"])

    async def turn(self, *new: dict[str, Any], **fields: Any) -> Answer:
        messages = [*self.messages, *new]
        answer = await self.post(messages, **fields)
        self.messages = [*messages, message("assistant", answer.text)]
        closing = [END, *encode("\n")] if self.told else []  # of the answer before, which its length ended
        added = [token for each in new for token in rendered(each)]
        self.told.append([*closing, *added, BEGIN, *encode("assistant\n")])
        self.answers.append(answer)
        return answer

    async def cut_off(self, *new: dict[str, Any], **fields: Any) -> str:
        """Send a turn, and abort it once its answer begins; the events that came."""
        rid = f"{self.session}cut/"
        body = self.body([*self.messages, *new], stream=True, rid=rid, **{"max_tokens": 1200, **fields})
        events = []
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if not events:
                    await self.http.post("/abort_request", json={"rid": rid})
                events.append(line)
        return "\n".join(events)

    def span(self, index: int) -> list[int]:
        """History positions of the tool response at this index, the one new message of its turn."""
        turn = (index - 1) // 2
        before = sum(map(len, self.told[:turn])) + turn * OUT + 2  # the closing of the answer before
        return [before, before + len(rendered(self.messages[index]))]

    async def refusal(self, messages: list[dict[str, Any]], **fields: Any) -> str:
        answer = await self.http.post("/v1/chat/completions", json=self.body(messages, **fields))
        assert answer.status_code == 400, answer.text
        return answer.json()["message"]


async def token_turn(
    client: Client, rid: str, session: str, ids: list[int], asks: dict[str, Any]
) -> Generation:
    call = Call(rid, ids, None, OUT, session=session, asks=asks, ignore_eos=True)
    return await client.generate(call)


PAGES = ("moss and fern " * 9, "a long page on granite " * 6)
"""Two tool responses, of 126 and 138 bytes."""


def chatted(served: Served, test: Callable[[Client, ChatAgent], Awaitable[None]]) -> None:
    """Run a coroutine that takes a chat agent with a session of its own and two tool responses behind it."""

    async def run():
        async with Client(served.url) as client, httpx.AsyncClient(base_url=served.url, timeout=600) as http:
            agent = ChatAgent(http, served.name())
            await client.open_session(agent.session)
            await agent.turn(message("system", "Answer briefly. " * 4), message("user", "What grows here?"))
            for page in PAGES:
                await agent.turn(message("tool", page))
            await test(client, agent)
            await client.close_session(agent.session)

    asyncio.run(run())
    served.server.check()


CHAT_REFUSED = [
    ({"drop_message": {"6": [9]}}, "message 9 is out of range; the request has messages 0 to 7"),
    ({"drop_message": {"6": [3.5]}}, "3.5 is not a message"),
    ({"drop_message": {"6": [1]}}, "message 1 belongs to the first prompt"),
    ({"drop_message": {"4": [3]}}, "messages 5 to 6 have seen it; drop it after message 6"),
    (
        {"drop_message": {"7": [3]}},
        "cannot be dropped after message 7, which the session has not been told yet",
    ),
    ({"drop_message": {"6": [3]}, "session_params": None}, "is for a conversation held in a session"),
    ({"session_params": {"id": "nobody"}}, "session id nobody does not exist"),
    ({"session_params": {"id": 7}}, "session_params: {'id': 7} is not"),
    ({"reposition": [3]}, "reposition: .* so no gap is closed"),
    ({"custom_params": {"sqreal_drop": [[90, 95]]}}, "sqreal_drop: a chat turn drops messages, not spans"),
    ({"n": 2}, "n: 2: a session continues with one answer"),
]
"""Fields of a turn behind message 6, the second answer to a tool response, and what is said of them."""
