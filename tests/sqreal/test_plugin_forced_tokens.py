# SPDX-License-Identifier: Apache-2.0
"""Which token is due, and which requests cannot be forced. On stand-ins: the rule needs no server."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqreal.plugin.forced_tokens import FORCE, N_IN, Sampling, arrived, check_server, due, fault_of
from sqreal.plugin.hooks import PluginError

STOP = 2


def request(forced=None, n_in=10, **changes):
    params = None if forced is None else {FORCE: list(forced), N_IN: n_in}
    sampling = SimpleNamespace(custom_params=params, max_new_tokens=50, stop_token_ids=[STOP], ignore_eos=False)
    req = SimpleNamespace(
        rid="r",
        sampling_params=sampling,
        origin_input_ids=[7] * n_in,
        eos_token_ids={3},
        tokenizer=None,
        to_finish=None,
    )
    req.set_finish_with_abort = lambda message: setattr(req, "to_finish", message)
    for name, value in changes.items():
        setattr(req, name, value)
    return req


# The rule.


@given(
    forced=st.lists(st.integers(0, 500), min_size=1, max_size=30),
    n_in=st.integers(1, 100),
    chunk=st.integers(1, 40),
    retract_at=st.sets(st.integers(0, 29)),
)
def test_every_output_token_is_the_recorded_one(forced, n_in, chunk, retract_at):
    """However the prefill is cut, and wherever the request is retracted and prefilled anew."""
    req, outputs, held = request(forced, n_in), [], 0
    while len(outputs) < len(forced):
        if len(outputs) in retract_at:
            retract_at, held = retract_at - {len(outputs)}, 0
        known = n_in + len(outputs)
        held = min(held + chunk, known) if held < known else held + 1
        tokens = due([req], [held])
        if held >= known:  # else a chunk, whose token is dropped
            outputs.append(tokens[0])
    assert outputs == forced


def test_rows_keep_their_own_tokens():
    """A free row, a chunk, a first token, a later one, and the step that overlap launches behind the end."""
    rows = [
        request(),
        request([5, STOP], 10),
        request([6, STOP], 10),
        request([7, 8, STOP], 4),
        request([STOP], 3),
    ]
    assert due(rows, [10, 9, 10, 5, 4]) == [-1, -1, 6, 8, -1]


def test_free_rows_need_nothing():
    assert due([request(), request()], [4, 5]) is None
    assert due([request([5, STOP], 10)], [9]) is None
    assert due([], []) is None


def test_going_on_behind_the_end_is_an_error():
    with pytest.raises(PluginError, match="request r continued after its 2 forced tokens"):
        due([request([5, STOP], 10)], [13])


# What is refused.


def fault(params, **changes):
    facts = {"n_in": 10, "max_new_tokens": 50, "vocabulary": 512, "stops": {STOP, 3}, **changes}
    return fault_of(params, **facts)


def test_a_good_request_has_no_fault():
    assert fault({FORCE: [5, 6, STOP], N_IN: 10}) is None
    assert fault({FORCE: [5, 6, 3], N_IN: 10}) is None, "the model's own end of sequence ends it too"
    assert fault({FORCE: [5] * 50, N_IN: 10}) is None, "its declared length ends it too"
    assert fault({FORCE: [5, STOP, 6], N_IN: 10}, stops=set(), max_new_tokens=3) is None, "ignore_eos"


@pytest.mark.parametrize(
    ("params", "changes", "said"),
    [
        ({FORCE: [], N_IN: 10}, {}, "at least one"),
        ({FORCE: "abc", N_IN: 10}, {}, "not a list"),
        ({FORCE: None, N_IN: 10}, {}, "not a list"),
        ({FORCE: [5, 2.0], N_IN: 10}, {}, "not a list of token ids"),
        ({FORCE: [True, STOP], N_IN: 10}, {}, "not a list of token ids"),
        ({FORCE: [512, STOP], N_IN: 10}, {}, "512 is outside the vocabulary of 512"),
        ({FORCE: [-1, STOP], N_IN: 10}, {}, "-1 is outside"),
        ({FORCE: [5, STOP], N_IN: 9}, {}, "sqreal_n_in is 9, the server holds 10"),
        ({FORCE: [5, STOP]}, {}, "sqreal_n_in is None"),
        ({FORCE: [5] * 50 + [STOP], N_IN: 10}, {}, "51 tokens, max_new_tokens allows 50"),
        ({FORCE: [5, 3, STOP], N_IN: 10}, {}, "token 1 of 3 is 3, which ends the request"),
        ({FORCE: [5, 6], N_IN: 10}, {}, "the last token, 6, does not end the request"),
        ({FORCE: [5, STOP], N_IN: 10}, {"stops": set()}, "does not end the request"),
    ],
)
def test_what_cannot_be_forced_is_said(params, changes, said):
    assert said in fault(params, **changes)


def scheduler():
    return SimpleNamespace(model_config=SimpleNamespace(vocab_size=512))


def test_a_refused_request_is_aborted_and_no_longer_forced():
    """It still runs one step on its way out, over a prompt of one token."""
    req, seen = request([5, 6]), []
    arrived(lambda *args: seen.append(args), scheduler(), req, False)
    assert (
        req.to_finish == "sqreal_force: the last token, 6, does not end the request; name it in stop_token_ids"
    )
    assert due([req], [1]) is None
    assert len(seen) == 1


@pytest.mark.parametrize(
    "req", [request(), request([5, STOP]), request([5, 3]), request([5, 9], to_finish="before")]
)
def test_other_requests_pass(req):
    before = req.to_finish
    arrived(lambda *args: None, scheduler(), req, False)
    assert req.to_finish == before


def test_log_probabilities_are_those_of_the_forced_tokens():
    """Forced and free rows of one step; a step without a forced row is left as it is."""
    torch = pytest.importorskip("torch")
    sampling, scored = Sampling(), []

    def sample(runner, logits_output, forward_batch):
        tokens = torch.tensor([7, 8, 9])
        sampling.scored(lambda *args: scored.append(args[-1].tolist()), None, None, None, None, tokens)
        return tokens

    step = SimpleNamespace(sqreal_forced=torch.tensor([-1, 5, STOP]))
    assert sampling.sampled(sample, None, None, step).tolist() == [7, 5, STOP]
    assert sampling.sampled(sample, None, None, SimpleNamespace()).tolist() == [7, 8, 9]
    assert scored == [[7, 5, STOP], [7, 8, 9]]


def test_the_tokenizers_stops_count():
    tokenizer = SimpleNamespace(eos_token_id=9, additional_stop_token_ids={11})
    req = request([5, 11, STOP], tokenizer=tokenizer)
    arrived(lambda *args: None, scheduler(), req, False)
    assert "token 1 of 3 is 11" in req.to_finish


@pytest.mark.parametrize(("speculative", "diffusion"), [(True, None), (False, object())])
def test_servers_without_one_token_a_step_are_refused(speculative, diffusion):
    server = SimpleNamespace(
        spec_algorithm=SimpleNamespace(is_none=lambda: not speculative), dllm_config=diffusion
    )
    with pytest.raises(PluginError, match="leave out"):
        check_server(server)
