# SPDX-License-Identifier: Apache-2.0
"""`weka_trace` against counts read from the files with jq, and the traps of the format (FORMATS.md).

Read with `jq '[.requests[]|select(.type!="subagent")]|[length, .[0].in, (map(.out)|add), ...]'` and, for the
sub-agents, `jq '.requests[]|select(.type=="subagent")|[.agent_id, .t, .duration_ms, (.requests|length), ...]'`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqsim.errors import TraceError
from sqsim.trace.importing import import_files
from sqsim.trace.schema import Carries, Spawn
from sqsim.trace.statistics import final_context, prompts

WEKA = Path(__file__).parents[3] / "traces/weka"
MORE = Path(__file__).parents[2] / "data/traces"

# name: calls, first prompt, last prompt, last output, all outputs, requests after a tool result
READ = {
    "trace_0277": (9, 19_560, 92_614, 359, 7_245, 8),
    "trace_0277/agent_001": (4, 11_651, 59_971, 3_636, 4_282, 3),
    "trace_0277/agent_002": (12, 11_717, 77_799, None, 8_008, 11),
    "trace_0277/agent_003": (17, 11_703, 76_081, None, 6_810, 16),
    "trace_0277/agent_004": (11, 12_277, 49_949, None, 5_517, 10),
    "trace_0519": (4, 214_353, 227_811, 1_753, 3_224, 1),
    "trace_0617": (16, 20_121, 48_158, 448, 13_265, 15),
    "trace_0329": (13, 71_284, 140_671, 204, 2_096, 11),
    "trace_0683": (26, 18_904, 161_795, 199, 19_049, 23),
}
LEFT_OVER = {
    "trace_0277": 165
}  # its last prompt grew by 165 less than the output before it, and nothing follows


def imported(*names: str):
    found = [next(path for at in (WEKA, MORE) if (path := at / f"{name}.json").exists()) for name in names]
    return {t.task_id: t for t in import_files(found).tasks}


@pytest.fixture(scope="module")
def weka():
    return imported("trace_0277", "trace_0519", "trace_0617", "trace_0329", "trace_0683")


def test_every_session_and_sub_agent_is_a_task(weka):
    assert list(weka) == list(READ)


@pytest.mark.parametrize("name", READ)
def test_counts_are_those_of_the_file(weka, name):
    calls, first, last, last_output, output, responses = READ[name]
    task = weka[name]
    assert task.steps == calls
    assert prompts(task)[0] == first
    assert prompts(task)[-1] == last + LEFT_OVER.get(name, 0)
    assert sum(turn.output_tokens for turn in task.turns) + task.answer.output_tokens == output
    assert sum(len(turn.calls) for turn in task.turns) == responses
    assert last_output in (None, task.answer.output_tokens)


def test_prompts_are_those_of_the_file_where_outputs_come_back_whole(weka):
    """trace_0617, by eye: in[k+1]-in[k]-out[k] is 9081, 2043, 2297, -70, 26, ...; the 70 are made up for by the 26 and more."""
    recorded = [20_121, 29_492, 31_919, 34_367, 34_765]
    assert prompts(weka["trace_0617"])[:5][:4] == recorded[:4]
    assert [c.response_tokens for turn in weka["trace_0617"].turns for c in turn.calls][:5] == [
        9081,
        2043,
        2297,
        0,
        0,
    ]
    requests = json.loads((WEKA / "trace_0617.json").read_text())["requests"]
    above = [ours - request["in"] for ours, request in zip(prompts(weka["trace_0617"]), requests, strict=True)]
    assert min(above) == 0, "what is owed is never paid twice"
    assert above[-1] == 0, "prompts meet the recording again"


def test_a_sub_agent_s_t_is_its_end(weka):
    """0277: agents 1-3 end at 79, 184 and 211 s after 60, 164 and 192 s: all began at 19.5 s, when call 0 ended.

    Call 1 (t = 228) came after all of them. Agent 4 began at 385.6 s, behind call 6 (t = 347), before call 7.
    """
    spawns = [weka[f"trace_0277/agent_00{n}"].spawn for n in (1, 2, 3, 4)]
    assert spawns == [Spawn(turn=0, join_turn=1)] * 3 + [Spawn(turn=6, join_turn=7)]
    assert all(weka[f"trace_0277/agent_00{n}"].parent.task_id == "trace_0277" for n in (1, 2, 3, 4))


def test_the_parent_waits_for_sub_agents_and_only_the_rest_is_its_own(weka):
    """Call 1 came at 228 s, 16.653 s after the last sub-agent's end at 211.347 s; think_time says 209."""
    first = weka["trace_0277"].turns[0]
    assert first.tool_wait_s == 0
    assert first.user_wait_s == pytest.approx(228 - 211.347)


def test_tool_latency_is_the_client_s_wait(weka):
    """0617, think_time of requests 1-4: 7, 6, 21, 2 s."""
    assert [turn.calls[0].latency_s for turn in weka["trace_0617"].turns[:4]] == [7, 6, 21, 2]


def test_think_time_behind_a_missing_api_time_is_not_the_wait(weka):
    """0519: requests 1 and 2 have no api_time, and request 3's think_time of 741 s counts from request 0's end.

    The gap is 751 - 737 = 14 s, of which 212 output tokens took some: at the median of 10.37/236 and 42.79/1753
    seconds a token, 7.25 s.
    """
    waits = [turn.user_wait_s + turn.tool_wait_s for turn in weka["trace_0519"].turns]
    assert waits[0] == 9
    assert waits[2] == pytest.approx(14 - 212 * (10.37 / 236 + 42.79 / 1753) / 2, abs=1e-3)


def test_a_human_s_text_belongs_to_no_cursor(weka):
    """0519: requests 2 and 3 have input_types ["text"]; request 2 grew by 227579-214612-1023 = 11,944 tokens."""
    turns = weka["trace_0519"].turns
    assert [len(turn.calls) for turn in turns] == [1, 0, 0]
    assert [turn.template_tokens for turn in turns] == [0, 11_944, 20]


def test_sub_agents_share_the_prompt_that_they_shared(weka):
    """tool_tokens + system_tokens = 7401 + 1022 = 8423, or 131 whole blocks of 64. Agent 4 runs another model."""
    one, two, three, four = (weka[f"trace_0277/agent_00{n}"] for n in (1, 2, 3, 4))
    assert one.prefix == two.prefix == three.prefix
    assert one.prefix.tokens == 131 * 64
    assert four.prefix.id != one.prefix.id
    same = [a == b for a, b in zip(one.question.hash_ids, two.question.hash_ids, strict=False)]
    assert same == [True] * 49 + [False] * 2, "180 of the first blocks are the same in the file; 131 are prefix"


def test_sessions_of_two_files_share_nothing(weka):
    """hash_id_scope is local: block 1 of one file is not block 1 of another."""
    ids = [set(weka[name].question.hash_ids) for name in ("trace_0277", "trace_0519", "trace_0617")]
    assert sum(map(len, ids)) == len(set.union(*ids))


def test_what_the_files_carry(weka):
    for task in weka.values():
        assert task.carries == Carries(
            text="absent", timing="recorded", usage="recorded", references="synthesised"
        )


def test_changes_are_counted():
    """0617 has 6 negative growths by eye (-70, -168, -983, -2, -44) and what they carry over; 0519 lacks 2 api_times."""
    warnings = import_files([WEKA / "trace_0519.json"]).warnings
    assert warnings == {
        "a request has no api_time; the file's median time a token stands in": 2,
        "a prompt rewrote the last blocks of the one before it; taken as unchanged": 1,
    }


def weka_file(tmp_path, *requests: dict, **more) -> Path:
    defaults = {
        "t": 0.0,
        "type": "n",
        "hash_ids": [],
        "input_types": ["tool_result"],
        "api_time": 1.0,
        "think_time": 1.0,
    }
    value = {
        "id": "w", "models": ["m"], "block_size": 64, "tool_tokens": 0, "system_tokens": 0,
        "requests": [{**defaults, **request} for request in requests], **more,
    }  # fmt: skip
    path = tmp_path / "w.json"
    path.write_text(json.dumps(value))
    return path


def test_a_prompt_that_does_not_continue_is_a_compaction(tmp_path):
    """Request 2 shares 1 of 10 blocks with request 1: the context restarts with its own tokens."""
    blocks = list(range(10))
    path = weka_file(
        tmp_path,
        {"t": 0, "in": 600, "out": 40, "hash_ids": blocks[:9]},
        {"t": 5, "in": 660, "out": 40, "hash_ids": blocks},
        {"t": 9, "in": 700, "out": 40, "hash_ids": [0, *range(20, 29)]},
        {"t": 12, "in": 800, "out": 40, "hash_ids": [0, *range(20, 31)]},
    )
    report = import_files([path])
    (task,) = report.tasks
    assert prompts(task) == [600, 660, 700, 800]
    assert task.turns[2].reset.keep_tokens == 700
    assert (
        report.warnings["a prompt does not continue the one before it (compaction): the context restarts"] == 1
    )


def test_a_compaction_before_the_last_call_keeps_it_a_turn(tmp_path):
    path = weka_file(tmp_path, {"in": 900, "out": 40}, {"t": 5, "in": 100, "out": 7})
    (task,) = import_files([path]).tasks
    assert task.answer is None
    assert (task.turns[1].reset.keep_tokens, task.turns[1].output_tokens) == (100, 7)


def test_a_small_request_between_large_ones_keeps_its_own_size(tmp_path):
    """Clients also ask for titles and the like: the stated prefix of 500 tokens cannot be in a prompt of 30."""
    requests = [{"t": 9 * i, "in": tokens, "out": 5} for i, tokens in enumerate((900, 30, 1000, 1100))]
    (task,) = import_files([weka_file(tmp_path, *requests, tool_tokens=400, system_tokens=100)]).tasks
    assert prompts(task) == [900, 30, 1000, 1100]


def test_zero_tokens_are_normalised_and_counted(tmp_path):
    path = weka_file(tmp_path, {"in": 0, "out": 0}, {"t": 5, "in": 10, "out": 3})
    report = import_files([path])
    (task,) = report.tasks
    assert prompts(task) == [1, 10]
    assert task.turns[0].output_tokens == 1
    assert report.warnings["an output of 0 tokens counts as 1"] == 1
    assert report.warnings["a prompt of 0 tokens counts as 1"] == 1


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        ({"in": -5, "out": 1}, "requests[0].in", "-5 is not a token count"),
        ({"in": 5.5, "out": 1}, "requests[0].in", "5.5 is not a token count"),
        ({"in": 10**40, "out": 1}, "requests[0].in", "is not a token count"),
        ({"in": 5}, "requests[0].out", "is missing"),
        ({"in": 5, "out": 1, "t": -1.0}, "requests[0].t", "-1.0 is not a time"),
        ({"in": 5, "out": 1, "t": "noon"}, "requests[0].t", "'noon' is not a time"),
        ({"in": 5, "out": 1, "think_time": -1}, "requests[0].think_time", "-1 is not a time"),
        ({"in": 5, "out": 1, "hash_ids": [1, "b"]}, "requests[0].hash_ids", "is not a list of 64-bit"),
        ({"in": 5, "out": 1, "hash_ids": [1.5]}, "requests[0].hash_ids", "is not a list of 64-bit"),
    ],
)  # fmt: skip
def test_a_bad_request_is_named(tmp_path, request_, field, message):
    with pytest.raises(TraceError, match=r"w\.json") as caught:
        import_files([weka_file(tmp_path, request_)])
    assert caught.value.field == field
    assert message in caught.value.problem


@pytest.mark.parametrize(("more", "field"), [({"requests": []}, "requests"), ({"block_size": 0}, "block_size")])
def test_a_file_without_requests_or_blocks_is_named(tmp_path, more, field):
    with pytest.raises(TraceError) as caught:
        import_files([weka_file(tmp_path, {"in": 5, "out": 1}, **more)])
    assert caught.value.field == field


def test_final_context_of_a_session_beyond_the_model_is_kept(weka):
    """A context beyond 131,072 is the simulator's to refuse by name, not the importer's."""
    assert final_context(weka["trace_0519"]) == 227_811 + 1_753
