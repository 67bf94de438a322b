# SPDX-License-Identifier: Apache-2.0
"""Forced decoding: a request dictates its own output, token by token, at the real model's pace.

The model runs and samples as always; then the sampled token of each forced row is replaced. The row's sequence length
alone determines the due token: after a step over `seq_len` tokens, output token number `seq_len - n_in` is due.
SGLang's count of the tokens it already knows lags by one step under overlap scheduling, and starts anew for the
chunks of a prefill, a retracted request or a session's turn; the sequence length is right in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqreal.plugin.hooks import Hook, Need, PluginError
from sqreal.plugin.versions import signature

FORCE = "sqreal_force"
"""Key of `custom_params`: the output tokens, the last of which ends the request."""
N_IN = "sqreal_n_in"
"""Key of `custom_params`: the number of prompt tokens before them, with a session its whole context."""

_ATTACHED = (
    "sqreal_forced"  # attribute of a ForwardBatch that carries the tokens from its making to its sampling
)


def check_server(scheduler: Any) -> None:
    """Refuse a server, at its start, that does not generate tokens one by one."""
    if not scheduler.spec_algorithm.is_none():
        raise PluginError(
            "forced tokens do not work with speculative decoding; leave out --speculative-algorithm"
        )
    if scheduler.dllm_config is not None:
        raise PluginError("forced tokens do not work with diffusion models; leave out --dllm-algorithm")


def arrived(original: Callable[..., None], scheduler: Any, req: Any, *args: Any, **kwargs: Any) -> None:
    """Check a request that enters the queue: refuse one that cannot be forced; the server continues."""
    params = req.sampling_params.custom_params
    if isinstance(params, dict) and FORCE in params and req.to_finish is None:
        fault = fault_of(
            params,
            n_in=len(req.origin_input_ids),
            max_new_tokens=req.sampling_params.max_new_tokens,
            vocabulary=scheduler.model_config.vocab_size,
            stops=set() if req.sampling_params.ignore_eos else _stops(req),
        )
        if fault is not None:
            del params[FORCE]  # it still takes one step, on its way out
            req.set_finish_with_abort(f"{FORCE}: {fault}")
    original(scheduler, req, *args, **kwargs)


def fault_of(
    params: dict[str, Any], *, n_in: int, max_new_tokens: int, vocabulary: int, stops: set[int]
) -> str | None:
    """State why these tokens cannot be forced, with the fix; None when they can.

    `stops` are the ids that end this request (none with ignore_eos). `max_new_tokens` is the server's limit, which the
    context length and the pool may have made smaller than the request's.
    """
    forced, said = params[FORCE], params.get(N_IN)
    if not isinstance(forced, list) or not forced or not all(type(token) is int for token in forced):
        return "is not a list of token ids with at least one; give the recorded output"
    if not all(0 <= token < vocabulary for token in forced):
        wrong = next(token for token in forced if not 0 <= token < vocabulary)
        return f"{wrong} is outside the vocabulary of {vocabulary}; map the recorded ids into it"
    if said != n_in:
        return (
            f"{N_IN} is {said}, the server holds {n_in} prompt tokens; with a session count all of its context"
        )
    if len(forced) > max_new_tokens:
        return f"{len(forced)} tokens, max_new_tokens allows {max_new_tokens} here; raise it, the pool or the context length"
    early = next((place for place, token in enumerate(forced[:-1]) if token in stops), None)
    if early is not None:
        return f"token {early} of {len(forced)} is {forced[early]}, which ends the request; keep stop ids for the last place"
    if len(forced) < max_new_tokens and forced[-1] not in stops:
        return f"the last token, {forced[-1]}, does not end the request; name it in stop_token_ids"
    return None


def _stops(req: Any) -> set[int]:
    """Collect the ids that end a request, as `Req._check_token_based_finish` looks for them."""
    stops = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        stops |= {req.tokenizer.eos_token_id, *(req.tokenizer.additional_stop_token_ids or ())}
    return stops


def due(reqs: Sequence[Any], seq_lens: Sequence[int]) -> list[int] | None:
    """Return the token that each row must produce in this step, -1 for a free row; None when all rows are free."""
    tokens = [-1] * len(reqs)
    for row, (req, seq_len) in enumerate(zip(reqs, seq_lens, strict=True)):
        params = req.sampling_params.custom_params
        forced = params.get(FORCE) if isinstance(params, dict) else None
        if not forced:
            continue
        place = seq_len - len(req.origin_input_ids)
        if 0 <= place < len(forced):  # before the output: a chunk of the prefill, whose token SGLang drops
            tokens[row] = forced[place]
        elif place > len(forced):  # one after the last: launched before the end was seen, and dropped
            raise PluginError(f"request {req.rid} continued after its {len(forced)} forced tokens (at {place})")
    return tokens if any(token >= 0 for token in tokens) else None


def batch_made(original: Callable[..., Any], cls: type, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Note the tokens that the rows of a new forward pass must produce."""
    import torch  # noqa: PLC0415 - only a server needs it, and has it loaded

    forward_batch = original(cls, batch, *args, **kwargs)
    tokens = due(batch.reqs, batch.seq_lens_cpu.tolist()) if batch.reqs else None
    if tokens is not None:
        # Pinned, so that the copy to a GPU does not wait for the steps before.
        forced = torch.tensor(tokens, dtype=torch.int64, pin_memory=torch.cuda.is_available())
        setattr(forward_batch, _ATTACHED, forced)
    return forward_batch


class Sampling:
    """Sampling hook that replaces sampled tokens by forced ones and makes `return_logprob` report those."""

    def __init__(self) -> None:
        self._forced: Any = None  # of the current step; one thread samples, a step at a time

    def hooks(self) -> list[Hook]:
        """List the hooks of SGLang's methods."""
        return [
            Hook(
                "sglang.srt.model_executor.model_runner.ModelRunner.sample",
                "self logits_output forward_batch",
                self.sampled,
            ),
            Hook(
                "sglang.srt.layers.logprob_processor.OutputLogprobProcessor.compute_logprobs",
                "self logprobs top_logprobs_nums token_ids_logprobs batch_next_token_ids",
                self.scored,
            ),
        ]

    def sampled(self, original: Callable[..., Any], runner: Any, logits_output: Any, forward_batch: Any) -> Any:
        """Replace sampled tokens by the forced ones."""
        self._forced = getattr(forward_batch, _ATTACHED, None)
        try:
            return self._replaced(original(runner, logits_output, forward_batch))
        finally:
            self._forced = None

    def scored(
        self, original: Callable[..., Any], processor: Any, logprobs: Any, top: Any, ids: Any, tokens: Any
    ) -> Any:
        """Compute log-probabilities of the returned tokens, not of those that the model sampled."""
        return original(processor, logprobs, top, ids, self._replaced(tokens))

    def _replaced(self, tokens: Any) -> Any:
        import torch  # noqa: PLC0415 - as above

        forced = self._forced
        if forced is None:
            return tokens
        if tokens.shape != forced.shape:
            raise PluginError(
                f"{tuple(tokens.shape)} tokens sampled for {len(forced)} rows; padded batches are not supported"
            )
        forced = forced.to(tokens.device, non_blocking=True)
        return torch.where(forced < 0, tokens, forced.to(tokens.dtype))


HOOKS = (
    Hook("sglang.srt.managers.scheduler.Scheduler._add_request_to_queue", "self req is_retracted", arrived),
    Hook(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        signature("ForwardBatch.init_new"),
        batch_made,
    ),
    *Sampling().hooks(),
)

NEEDS = (
    Need("sglang.srt.managers.scheduler.Scheduler", "spec_algorithm dllm_config model_config"),
    Need("sglang.srt.configs.model_config.ModelConfig", "vocab_size"),
    Need(
        "sglang.srt.managers.schedule_batch.Req",
        "rid sampling_params origin_input_ids eos_token_ids tokenizer to_finish set_finish_with_abort",
    ),
    Need("sglang.srt.managers.schedule_batch.ScheduleBatch", "reqs seq_lens_cpu"),
    Need(
        "sglang.srt.sampling.sampling_params.SamplingParams",
        "custom_params max_new_tokens stop_token_ids ignore_eos",
    ),
)
