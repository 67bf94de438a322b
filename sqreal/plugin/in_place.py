# SPDX-License-Identifier: Apache-2.0
"""In-place eviction: check and carry out the request options; positions keep counting dropped tokens.

A turn of a session may name spans to drop before it; a span that cannot be dropped at once (a fork reads the session, or
a sliding window still reaches it) is dropped before a later turn. A fork may read a session up to a length.
request_options.py defines the options, sessions.py manages the KV.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin import request_options, versions
from sqreal.plugin.chat_turn import ChatTurn
from sqreal.plugin.checks import BadRequestError, short
from sqreal.plugin.conversation import Conversation, announce_fork, fork_over
from sqreal.plugin.history import common_prefix
from sqreal.plugin.hooks import Hook, Need, PluginError
from sqreal.plugin.request_options import FORK, Fork, RequestOptions, fork_of
from sqreal.plugin.server_check import BACK_END, check_scheduler
from sqreal.plugin.session_cache import SessionCache
from sqreal.plugin.sessions import SHIFT, Sessions
from sqreal.plugin.transcript import Plan, State

Original = Callable[..., Any]

_ADAPTER = versions.adapter()

_UNUSED = 2  # tokens of the context that SGLang leaves unused
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def check_server(scheduler: Any) -> None:
    """Refuse a server, at its start, whose KV the plugin does not know; name the flag that causes it."""
    if type(scheduler.tree_cache) is not SessionCache:
        raise PluginError(
            f"in-place sessions need their own cache; start with --radix-cache-backend {BACK_END}"
        )
    check_scheduler(scheduler, _ADAPTER.parallel(scheduler), _ADAPTER.unserved(scheduler))


def arrived(original: Original, scheduler: Any, recv_req: Any, **kwargs: Any) -> None:
    """Carry out the options of an arriving request, or refuse it by name."""
    params = recv_req.session_params
    name = None if params is None else params.id
    try:
        _check_request(name, recv_req.input_ids, scheduler.model_config.vocab_size)
        options = request_options.read(
            recv_req.sampling_params.custom_params, session=name, tokens=len(recv_req.input_ids or ())
        )
        if options.fork is not None and options.chat is not None:
            _fork_by_messages(scheduler, options.fork.session, options.chat, recv_req)
        elif options.fork is not None:
            _check_fork(scheduler, options.fork, recv_req.input_ids)
        session = None if name is None else scheduler.session_controller.get(name)
        if session is not None and session.streaming:
            _check_turn(scheduler, session, params, recv_req.input_ids)
            _begin(scheduler, session, options, recv_req)
        elif session is not None:
            _check_plain(session, options)
    except BadRequestError as fault:
        _refuse(scheduler, recv_req, str(fault))
        return
    original(scheduler, recv_req, **kwargs)


def _check_request(name: Any, input_ids: Any, vocabulary: int) -> None:
    """Refuse a request that would end SGLang's scheduler, and every session with it."""
    if name is not None and (not isinstance(name, str) or not name):
        raise BadRequestError(f"session_params: id: {short(name)} is not a session's id")
    if input_ids and not 0 <= min(input_ids) <= max(input_ids) < vocabulary:
        place = next(place for place, token in enumerate(input_ids) if not 0 <= token < vocabulary)
        raise BadRequestError(
            f"input_ids[{place}]: {short(input_ids[place])} is not a token; the model's are 0 to {vocabulary - 1}"
        )


def _check_turn(scheduler: Any, session: Any, params: Any, input_ids: Any) -> None:
    """Refuse a turn that SGLang would refuse itself.

    SGLang leaves a turn that it refuses attached to its session. Once that turn has passed, the session counts as idle although
    its first turn still runs, and a close then frees KV in use: the server ends with all its clients (sgl-project/sglang
    #27024). A request that the plugin refuses has no session.
    """
    name = session.session_id
    if session.close_on_finish:
        raise BadRequestError(f"session {name!r} is closing; open another one")
    talk = scheduler.tree_cache.session.conversation(session)
    if talk.busy:
        raise BadRequestError(f"session {name!r} has an unfinished turn; wait for its end")
    if not talk.begun and not input_ids:
        raise BadRequestError(f"input_ids: session {name!r} begins with no token; send its first prompt")
    for key in ("replace", "drop_previous_output", "offset"):
        if getattr(params, key, None):
            raise BadRequestError(
                f"session_params: {key}: a session opened with streaming: true only appends; leave it out"
            )


def _begin(scheduler: Any, session: Any, options: RequestOptions, recv_req: Any) -> None:
    """Begin a turn: drop the spans that it and earlier turns named, as far as possible now."""
    talk = scheduler.tree_cache.session.conversation(session)
    plan = None
    if options.chat is not None:
        plan = _plan(scheduler, session.session_id, talk, options.chat, recv_req.input_ids)
        options = options._replace(drop=plan.spans)
    new = recv_req.input_ids if plan is None else plan.ids
    talk.check_drop(options.drop)
    shift, told = _shift(scheduler, session.session_id), len(talk.ids()) + len(new)
    if told + shift > scheduler.model_config.context_len - _UNUSED:
        raise BadRequestError(
            f"session {session.session_id!r}: {told} tokens, at positions that count {shift} dropped ones, reach the "
            f"model's context of {scheduler.model_config.context_len}; open a new session with what is left"
        )
    if plan is None:
        talk.transcript.leave(talk.told)
    else:
        talk.transcript.begin(plan)
        recv_req.input_ids = new
    talk.waiting += options.drop
    drop_ready(scheduler, session.session_id, talk)
    talk.begin(options, len(new))


def _plan(scheduler: Any, name: str, talk: Conversation, turn: ChatTurn, ids: Any) -> Plan:
    """Plan a turn of a whole conversation: the messages new to its session, and the spans to drop before."""
    tokenizer = scheduler.tokenizer
    if tokenizer is None:
        raise BadRequestError("messages: this server has no tokenizer; start it without --skip-tokenizer-init")
    begun = talk.begun
    state = State(
        name,
        talk.told if begun else 0,
        talk.first,
        begun and talk.stopped,
        lambda tokens: _texts(tokenizer, talk.answer(tokens)),
    )
    return talk.transcript.plan(turn, ids, state)


def _texts(tokenizer: Any, ids: Any) -> list[str]:
    """Decode an answer in each way that SGLang may have: with or without special tokens; it shows a non-token as token 0."""
    known = len(tokenizer)
    tokens = [token if 0 <= token < known else 0 for token in ids]
    return [str(tokenizer.decode(tokens, skip_special_tokens=skip)) for skip in (False, True)]


def _check_plain(session: Any, options: RequestOptions) -> None:
    """Refuse request options for a session of SGLang's other kind; SGLang serves the rest."""
    if options != request_options.NOTHING:
        raise BadRequestError(
            f"session {session.session_id!r} was not opened with streaming: true; open another one"
        )


def drop_ready(scheduler: Any, name: str, talk: Conversation) -> None:
    """Drop those of a session's waiting spans that can be dropped now."""
    if not talk.waiting:
        return
    cache = scheduler.tree_cache
    sessions: Sessions = cache.session
    slot = sessions.slots.get(name)
    tail = cache.sliding_window_size + 1 if cache.supports_swa() else 0
    spans = talk.ready(None if slot is None else slot.committed, tail, cache.page_size)
    if spans:
        if slot is not None:
            sessions.drop(name, spans)
        talk.cut(spans)


def _check_fork(scheduler: Any, fork: Fork, input_ids: Any) -> None:
    """Check that a fork repeats the tokens of its session: a client that cannot may not read their KV."""
    known = _forked(scheduler, fork.session).ids()
    tokens = min(fork.tokens, len(known))
    same = common_prefix(known[:tokens], input_ids[:tokens])
    if same < tokens:
        raise BadRequestError(
            f"{FORK}: token {same} of the request is not that of session {fork.session!r}; "
            "send the tokens that the session holds, without those that were dropped"
        )


def _fork_by_messages(scheduler: Any, name: str, turn: ChatTurn, recv_req: Any) -> None:
    """Fork an idle session by messages: the fork reads the session's KV and computes only the new messages."""
    talk = _forked(scheduler, name)
    if talk.busy:
        raise BadRequestError(
            f"{FORK}: session {name!r} has an unfinished turn; send the fork before it, or wait"
        )
    plan = _plan(scheduler, name, talk, turn, recv_req.input_ids)
    if plan.drop or not plan.start:
        raise BadRequestError(
            f"{FORK}: session {name!r} was not told a message yet, and a fork drops none; send a turn first"
        )
    known = talk.ids()
    recv_req.input_ids = known + plan.ids
    recv_req.sampling_params.custom_params[FORK] = {"session": name, "tokens": len(known)}


def _forked(scheduler: Any, name: str) -> Conversation:
    session = scheduler.session_controller.get(name)
    if session is None or not session.streaming:
        raise BadRequestError(
            f"{FORK}: session {name!r} does not exist, or was not opened with streaming: true; open it, or name another one"
        )
    talk: Conversation = scheduler.tree_cache.session.conversation(session)
    return talk


def _refuse(scheduler: Any, recv_req: Any, fault: str) -> None:
    """Answer with status 400, as SGLang does for an unknown session."""
    req = _ADAPTER.refused(scheduler, recv_req)
    req.tokenizer = scheduler.tokenizer
    req.set_finish_with_abort(fault)
    scheduler.init_req_max_new_tokens(req)
    scheduler._add_request_to_queue(req)  # noqa: SLF001 - as above


def queued(original: Original, scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    """Note on its session that a queued request reads or continues it."""
    sessions: Sessions = scheduler.tree_cache.session
    fork = fork_of(req)
    if fork is not None and not is_retracted:
        session = scheduler.session_controller.get(fork.session)
        if session is not None:
            announce_fork(req, sessions.conversation(session), fork.tokens)
    elif req.session is not None and req.session.streaming and not is_retracted:
        sessions.conversation(req.session).turn = req
    original(scheduler, req, is_retracted)


def capped(original: Original, scheduler: Any, req: Any) -> None:
    """Cap the output by the context limit in positions: tokens dropped in place still count."""
    original(scheduler, req)
    fork = fork_of(req)
    name = fork.session if fork is not None else req.session.session_id if req.session is not None else None
    if name is not None and req.to_finish is None:
        params = req.sampling_params
        room = (
            scheduler.model_config.context_len - _UNUSED - len(req.origin_input_ids) - _shift(scheduler, name)
        )
        params.max_new_tokens = max(0, min(params.max_new_tokens, room))


def _shift(scheduler: Any, name: str) -> int:
    slot = scheduler.tree_cache.session.slots.get(name)
    return 0 if slot is None else int(slot.shift)


def batch_made(original: Original, cls: type, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Set positions of a new forward pass, which count dropped tokens too."""
    import torch  # noqa: PLC0415 - a server has it loaded

    forward = original(cls, batch, *args, **kwargs)
    shifts = [getattr(req, SHIFT, 0) for req in batch.reqs or ()]
    if any(shifts):
        shift = torch.tensor(shifts, dtype=forward.positions.dtype).to(forward.positions.device)
        if not forward.forward_mode.is_decode():
            shift = shift.repeat_interleave(forward.extend_seq_lens.long())
        forward.positions = forward.positions + shift
    return forward


HOOKS = (
    Hook(
        f"{_SCHEDULER}.handle_generate_request",
        versions.signature("Scheduler.handle_generate_request"),
        arrived,
    ),
    Hook(f"{_SCHEDULER}._add_request_to_queue", "self req is_retracted", queued),
    *_ADAPTER.queue_hooks(fork_over),
    Hook(f"{_SCHEDULER}.init_req_max_new_tokens", "self req", capped),
    Hook(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        versions.signature("ForwardBatch.init_new"),
        batch_made,
    ),
)

NEEDS = (
    Need(
        _SCHEDULER,
        "tree_cache session_controller model_config tokenizer",
    ),
    Need("sglang.srt.configs.model_config.ModelConfig", "context_len vocab_size"),
    Need("sglang.srt.session.session_controller.SessionController", "sessions get"),
    Need("sglang.srt.session.session_controller.Session", "close_on_finish streaming session_id"),
    Need("sglang.srt.managers.io_struct.TokenizedGenerateReqInput", "input_ids sampling_params session_params"),
    Need("sglang.srt.model_executor.forward_batch_info.ForwardBatch", "positions forward_mode extend_seq_lens"),
)
