# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions for conversations in sessions: a request may drop messages and fork.

SGLang's endpoint reads `session_params` without using them, and has no `drop_message`. Here the request carries the
places of its messages in the rendered prompt (chat_turn.py); the scheduler compares them with the messages that the
session was told (transcript.py). This process keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionMessageGenericParam,
    ChatCompletionMessageUserParam,
    ChatCompletionRequest,
)

from sqreal.plugin import chat_turn, rendering, versions
from sqreal.plugin.chat_turn import CHAT, ChatTurn, Drop
from sqreal.plugin.checks import BadRequestError, short
from sqreal.plugin.hooks import Hook, Need
from sqreal.plugin.request_options import FORK

Original = Callable[..., Any]

_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_DROPS = "sqreal_drops"  # attribute of the HTTP request's state


async def received(original: Original, serving: Any, request: Any, raw_request: Any) -> Any:
    """Receive a request: read the fields that SGLang's own form leaves out."""
    if isinstance(request, ChatCompletionRequest) and raw_request is not None:
        body = await raw_request.json()
        try:
            drop = chat_turn.read_drops(
                body, len(request.messages), in_session=request.session_params is not None
            )
        except BadRequestError as fault:
            return serving.create_error_response(str(fault))
        setattr(raw_request.state, _DROPS, drop)
    return await original(serving, request, raw_request)


def converted(original: Original, serving: Any, request: Any, raw_request: Any = None) -> Any:
    """Handle rendered messages: for a session's turn, add their places in the prompt."""
    adapted, request = original(serving, request, raw_request)
    if not isinstance(request, ChatCompletionRequest):
        return adapted, request
    session, asked = request.session_params, (request.custom_params or {}).get(FORK)
    if session is not None or asked is not None:
        try:
            if session is None:
                more = {
                    FORK: {"session": chat_turn.read_fork(asked), "tokens": 1}
                }  # the scheduler knows the number
            else:
                more, adapted.session_params = {}, _checked(session)
            turn = _turn(serving, request, adapted, getattr(getattr(raw_request, "state", None), _DROPS, ()))
        except BadRequestError as fault:
            raise ValueError(str(fault)) from fault  # SGLang answers one with status 400
        custom = adapted.sampling_params.get("custom_params") or {}
        adapted.sampling_params["custom_params"] = {**custom, **more, CHAT: chat_turn.write(turn)}
    return adapted, request


def _checked(session: Any) -> Any:
    if set(session) != {"id"} or not isinstance(session["id"], str) or not session["id"]:
        raise BadRequestError(f'session_params: {short(session)} is not {{"id": a session\'s id}}')
    return session


def _turn(serving: Any, request: Any, adapted: Any, drop: Drop) -> ChatTurn:
    ids = adapted.input_ids
    for field in ("input_ids", "continue_final_message"):
        if getattr(request, field):
            raise BadRequestError(f"{field}: a session is told whole messages; leave it out, or use /generate")
    if request.n != 1:
        raise BadRequestError(f"n: {request.n}: a session continues with one answer; leave it out")
    if CHAT in (request.custom_params or {}):
        raise BadRequestError(f"custom_params: {CHAT} is written by the server; leave it out")
    if (
        not isinstance(ids, list)
        or serving.chat_encoding_spec is not None
        or serving.template_manager.chat_template_name is not None
    ):
        raise BadRequestError(
            "session_params: messages go into sessions on text models with a Jinja chat template; use /generate"
        )
    messages = request.messages
    if messages[-1].role == "assistant":
        raise BadRequestError(
            f"messages: the last one, message {len(messages) - 1}, is the assistant's; send what comes after it"
        )
    return rendering.turn(messages, ids, _Template(serving, request), drop)


class _Template:
    """Chat template of the server, with the tools and arguments of one request."""

    def __init__(self, serving: Any, request: Any) -> None:
        self._serving, self._request = serving, request

    def render(self, messages: Sequence[Any], *, prompt: bool) -> list[int]:
        part = self._request.model_copy(update={"messages": list(messages)})
        try:
            ids: list[int] = versions.adapter().rendered(self._serving, part, prompt=prompt)
        except ValueError as error:
            raise BadRequestError(
                f"messages: the chat template does not render the first {len(messages)} alone ({error}); use /generate"
            ) from error
        return ids

    def message(self, role: str, text: str) -> Any:
        if role == "user":
            return ChatCompletionMessageUserParam(role="user", content=text)
        return ChatCompletionMessageGenericParam(role=role, content=text)


HOOKS = (
    Hook(
        "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request",
        "self request raw_request",
        received,
    ),
    Hook(f"{_CHAT}._convert_to_internal_request", "self request raw_request", converted),
)

NEEDS = (
    Need(
        _CHAT,
        "_process_messages create_error_response chat_encoding_spec template_manager",
    ),
    Need(
        "sglang.srt.entrypoints.openai.protocol.ChatCompletionRequest",
        "messages session_params custom_params n input_ids continue_final_message",
    ),
    Need("sglang.srt.parser.template_manager.TemplateManager", "chat_template_name"),
    Need("sglang.srt.managers.io_struct.GenerateReqInput", "session_params sampling_params input_ids"),
)
