"""In-place eviction: what requests ask of their sessions is checked and carried out, and positions go on counting.

A turn of a session may name spans to drop before it; what cannot go at once (a fork reads the session, or a sliding
window still reaches the span) goes before a later turn. A fork may read a session up to a length. request_options.py has the
words, sessions.py what becomes of the KV.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqreal.plugin import request_options as wishes
from sqreal.plugin import versions
from sqreal.plugin.chat_turn import ChatTurn
from sqreal.plugin.checks import WishError, short
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
    """Refuse, when it starts, a server whose KV the plugin does not know, by the flag that makes it so."""
    if type(scheduler.tree_cache) is not SessionCache:
        raise PluginError(f"sessions in place need their cache; start with --radix-cache-backend {BACK_END}")
    check_scheduler(scheduler, _ADAPTER.parallel(scheduler), _ADAPTER.unserved(scheduler))


def arrived(original: Original, scheduler: Any, recv_req: Any, **kwargs: Any) -> None:
    """A request came in: do what it asks of its session first, or refuse it by name."""
    params = recv_req.session_params
    name = None if params is None else params.id
    try:
        _check_request(name, recv_req.input_ids, scheduler.model_config.vocab_size)
        wish = wishes.read(
            recv_req.sampling_params.custom_params, session=name, tokens=len(recv_req.input_ids or ())
        )
        if wish.fork is not None and wish.chat is not None:
            _fork_by_messages(scheduler, wish.fork.session, wish.chat, recv_req)
        elif wish.fork is not None:
            _check_fork(scheduler, wish.fork, recv_req.input_ids)
        session = None if name is None else scheduler.session_controller.get(name)
        if session is not None and session.streaming and not session.close_on_finish:
            _begin(scheduler, session, wish, recv_req)
        elif session is not None:
            _check_plain(session, wish)
    except WishError as fault:
        _refuse(scheduler, recv_req, str(fault))
        return
    original(scheduler, recv_req, **kwargs)


def _check_request(name: Any, input_ids: Any, vocabulary: int) -> None:
    """What would end SGLang's scheduler, and every session with it, is refused."""
    if name is not None and (not isinstance(name, str) or not name):
        raise WishError(f"session_params: id: {short(name)} is not a session's id")
    if input_ids and not 0 <= min(input_ids) <= max(input_ids) < vocabulary:
        place = next(place for place, token in enumerate(input_ids) if not 0 <= token < vocabulary)
        raise WishError(
            f"input_ids[{place}]: {short(input_ids[place])} is no token; the model's are 0 to {vocabulary - 1}"
        )


def _begin(scheduler: Any, session: Any, wish: RequestOptions, recv_req: Any) -> None:
    """A turn is to come: drop what it and those before asked for, as far as it can go."""
    talk = scheduler.tree_cache.session.conversation(session)
    if talk.busy:
        if wish != wishes.NOTHING:
            raise WishError(f"session {session.session_id!r} has an unfinished turn; wait for its end")
        return  # SGLang refuses it
    plan = None
    if wish.chat is not None:
        plan = _plan(scheduler, session.session_id, talk, wish.chat, recv_req.input_ids)
        wish = wish._replace(drop=plan.spans)
    new = recv_req.input_ids if plan is None else plan.ids
    talk.check_drop(wish.drop)
    shift, told = _shift(scheduler, session.session_id), len(talk.ids()) + len(new)
    if told + shift > scheduler.model_config.context_len - _UNUSED:
        raise WishError(
            f"session {session.session_id!r}: {told} tokens, at positions that count {shift} dropped ones, reach the "
            f"model's context of {scheduler.model_config.context_len}; open a new session with what is left"
        )
    if plan is None:
        talk.transcript.leave(talk.told)
    else:
        talk.transcript.begin(plan)
        recv_req.input_ids = new
    talk.waiting += wish.drop
    drop_ready(scheduler, session.session_id, talk)
    talk.begin(wish, len(new))


def _plan(scheduler: Any, name: str, talk: Conversation, turn: ChatTurn, ids: Any) -> Plan:
    """What of a whole conversation its session has not been told, and what is to be dropped before."""
    tokenizer = scheduler.tokenizer
    if tokenizer is None:
        raise WishError("messages: this server has no tokenizer; start it without --skip-tokenizer-init")
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
    """What SGLang may have made of an answer: with special tokens or without; what is no token it shows as token 0."""
    known = len(tokenizer)
    tokens = [token if 0 <= token < known else 0 for token in ids]
    return [str(tokenizer.decode(tokens, skip_special_tokens=skip)) for skip in (False, True)]


def _check_plain(session: Any, wish: RequestOptions) -> None:
    """A session of SGLang's other kind, or one that is closing, is served as by SGLang itself."""
    if wish != wishes.NOTHING:
        raise WishError(
            f"session {session.session_id!r} is closing or was not opened with streaming: true; open another one"
        )


def drop_ready(scheduler: Any, name: str, talk: Conversation) -> None:
    """Drop those of a session's waiting spans that can go now."""
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
    """A fork repeats the tokens of the session it names: who cannot say them may not read their KV."""
    known = _forked(scheduler, fork.session).ids()
    tokens = min(fork.tokens, len(known))
    same = common_prefix(known[:tokens], input_ids[:tokens])
    if same < tokens:
        raise WishError(
            f"{FORK}: token {same} of the request is not that of session {fork.session!r}; "
            "send the tokens that the session holds, without those that were dropped"
        )


def _fork_by_messages(scheduler: Any, name: str, turn: ChatTurn, recv_req: Any) -> None:
    """A fork whose list goes on from an idle session's: it reads what the session holds, and computes what is new."""
    talk = _forked(scheduler, name)
    if talk.busy:
        raise WishError(f"{FORK}: session {name!r} has an unfinished turn; send the fork before it, or wait")
    plan = _plan(scheduler, name, talk, turn, recv_req.input_ids)
    if plan.drop or not plan.start:
        raise WishError(
            f"{FORK}: session {name!r} was not told a message yet, and a fork drops none; send a turn first"
        )
    known = talk.ids()
    recv_req.input_ids = known + plan.ids
    recv_req.sampling_params.custom_params[FORK] = {"session": name, "tokens": len(known)}


def _forked(scheduler: Any, name: str) -> Conversation:
    session = scheduler.session_controller.get(name)
    if session is None or not session.streaming:
        raise WishError(
            f"{FORK}: session {name!r} does not exist, or was not opened with streaming: true; open it, or name another one"
        )
    talk: Conversation = scheduler.tree_cache.session.conversation(session)
    return talk


def _refuse(scheduler: Any, recv_req: Any, fault: str) -> None:
    """Answer with status 400, as SGLang does for a session that it does not know."""
    req = _ADAPTER.refused(scheduler, recv_req)
    req.tokenizer = scheduler.tokenizer
    req.set_finish_with_abort(fault)
    scheduler.init_req_max_new_tokens(req)
    scheduler._add_request_to_queue(req)  # noqa: SLF001 - as above


def queued(original: Original, scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    """A request enters the queue: its session knows who reads and continues it."""
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
    """The context limit is one of positions: what was dropped in place still counts."""
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
    """A batch becomes a forward pass: tokens stand behind those that are gone, too."""
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
