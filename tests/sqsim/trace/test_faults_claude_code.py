# SPDX-License-Identifier: Apache-2.0
"""Claude Code logs that were once misread (tests/data/faults): what each has to give, and others of its kind.

Wanted figures are read off the files by eye: usage is on each line, times are whole seconds.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.importing import ImportReport, import_files
from sqsim.trace.schema import Spawn, Task
from sqsim.trace.statistics import prompts
from tests.sqsim.trace.reports import changes

FAULTS = Path(__file__).parents[2] / "data/faults"
SESSION = "11111111-0000-4000-8000-000000000001"


def imported(*names: str, **options: bool) -> ImportReport:
    return import_files([FAULTS / name for name in names], **options)


def only(report: ImportReport) -> Task:
    (task,) = report.tasks
    return task


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (FAULTS / name).read_text().splitlines()]


def written(path: Path, events: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


# 02: references of edits


def test_an_edit_refers_to_the_response_that_showed_its_old_text():
    task = only(imported("02-references-edit-old-string/in.jsonl"))
    assert [turn.uses for turn in task.turns] == [(), (0,)]


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("Edit", {"file_path": "x", "old_string": "return width + height", "new_string": "y"}),
        ("Edit", {"file_path": "x", "old_string": 'width, height):\n    """Area of', "new_string": "y"}),
        ("MultiEdit", {"edits": [{"old_string": "zz none zz", "new_string": "y"}, {"old_string": "def area(width", "new_string": ""}]}),
        ("str_replace_based_edit_tool", {"command": "str_replace", "old_str": "    return width + height", "new_str": ""}),
        ("apply_patch", {"input": '*** Begin Patch\n@@\n def area(width, height):\n-    """Area of a rectangle."""\n+    pass\n'}),
    ],
)  # fmt: skip
def test_text_is_quoted_by_each_tool_that_edits(tool, given, tmp_path):
    events = lines("02-references-edit-old-string/in.jsonl")
    events[3]["message"]["content"][0].update(name=tool, input=given)
    task = only(import_files([written(tmp_path / "s.jsonl", events)]))
    assert task.turns[1].uses == (0,)


@pytest.mark.parametrize("old", ["return width * height", "a b", "   \n"])
def test_text_that_no_response_showed_is_no_reference(old, tmp_path):
    events = lines("02-references-edit-old-string/in.jsonl")
    events[3]["message"]["content"][0]["input"] = {"old_string": old, "new_string": "y"}
    assert only(import_files([written(tmp_path / "s.jsonl", events)])).turns[1].uses == ()


# 05, 24: sub-agents


@pytest.mark.parametrize("path", ["p_sub", f"p_sub/{SESSION}.jsonl"])
def test_a_sub_agent_in_a_file_of_its_own_is_a_child(path):
    """The call took 18 s; its sub-agent ended 1 s before its result."""
    parent, child = imported(f"05-subagent-files-not-joined/{path}").tasks
    assert (child.task_id, child.spawn) == (f"{SESSION}/abc1234", Spawn(turn=0, join_turn=1))
    assert (parent.turns[0].tool_wait_s, parent.turns[0].user_wait_s) == (0, 1)
    assert (prompts(parent), prompts(child)) == ([20_010, 20_115], [9_010, 9_095])


def test_files_of_a_session_and_one_file_give_the_same(tmp_path):
    folder = "05-subagent-files-not-joined/p_sub"
    events = lines(f"{folder}/{SESSION}.jsonl") + lines(f"{folder}/{SESSION}/subagents/agent-abc1234.jsonl")
    events.sort(key=lambda event: event["timestamp"])
    together = import_files([written(tmp_path / f"{SESSION}.jsonl", events)]).tasks
    apart = imported(folder).tasks
    source = {"source": apart[0].source}
    assert [task.model_copy(update=source) for task in together] == [
        task.model_copy(update=source) for task in apart
    ]


def test_a_sub_agent_s_sub_agent_belongs_to_it():
    """S1's result came 3 s behind aaa's end, aaa's 1 s behind bbb's."""
    root, outer, inner = imported("24-claude-code-nested-subagents/nested.jsonl").tasks
    assert [(task.task_id, task.parent and task.parent.task_id) for task in (root, outer, inner)] == [
        ("S1", None),
        ("S1/aaa", "S1"),
        ("S1/bbb", "S1/aaa"),
    ]
    assert [(task.turns[0].tool_wait_s, task.turns[0].user_wait_s) for task in (root, outer)] == [
        (0, 3),
        (0, 1),
    ]


@pytest.mark.parametrize("named", [(), ("aaa",), ("bbb",)])
@pytest.mark.parametrize("same_prompt", [True, False])
def test_nested_sub_agents_are_found_without_ids(named, same_prompt, tmp_path):
    """By the prompt, and by what was running where the prompt is not what the agent heard."""
    events = lines("24-claude-code-nested-subagents/nested.jsonl")
    for event in events:
        if event.get("toolUseResult", {}).get("agentId") not in named:
            event.pop("toolUseResult", None)
        if not same_prompt and event["type"] == "user" and isinstance(event["message"]["content"], str):
            event["message"]["content"] += " (as told)"
    tasks = import_files([written(tmp_path / "s.jsonl", events)]).tasks
    assert [task.parent and task.parent.task_id for task in tasks] == [None, "S1", "S1/aaa"]


def test_a_sub_agent_in_the_background_is_waited_for_later(tmp_path):
    """Its call is answered at once; the parent goes on, and only the step after the sub-agent's end joins it."""
    folder = "05-subagent-files-not-joined/p_sub"
    main = lines(f"{folder}/{SESSION}.jsonl")
    main[2]["timestamp"] = "2026-06-01T10:00:03.500Z"
    main[3]["timestamp"] = "2026-06-01T10:00:05.000Z"
    main[3]["message"]["content"] = [
        {"type": "tool_use", "id": "t9", "name": "Bash", "input": {"command": "sleep 20"}}
    ]
    last = json.loads(json.dumps(main[3]))
    last |= {"uuid": "a9", "requestId": "req_m9", "timestamp": "2026-06-01T10:00:26.000Z"}
    last["message"] |= {"id": "m9", "content": [{"type": "text", "text": "Done."}]}
    answer = json.loads(json.dumps(main[2])) | {"uuid": "u9", "timestamp": "2026-06-01T10:00:25.000Z"}
    answer["message"]["content"][0]["tool_use_id"] = "t9"
    del answer["toolUseResult"]
    side = lines(f"{folder}/{SESSION}/subagents/agent-abc1234.jsonl")
    parent, child = import_files([written(tmp_path / "s.jsonl", [*main, answer, last, *side])]).tasks
    assert child.spawn == Spawn(turn=0, join_turn=2)
    assert parent.turns[0].calls[0].latency_s == 0.5


# 06, 08: files that cannot be read whole


@pytest.mark.parametrize("name", ["p_summary", "p_noanswer", "p_empty"])
def test_a_bad_file_is_named_and_the_rest_goes_on(name):
    folder = FAULTS / "06-one-bad-file-kills-the-import" / name
    for paths in ([folder], sorted(folder.iterdir())):
        report = import_files(paths)
        assert only(report).task_id == SESSION
        ((path, reason),) = report.left_out
        assert SESSION not in path
        assert reason
        assert report.warnings["a file was left out"] == 1
        with pytest.raises(TraceError):
            import_files(paths, strict=True)


def test_a_line_that_was_cut_off_ends_the_file():
    report = imported("06-one-bad-file-kills-the-import/truncated.jsonl")
    assert prompts(only(report)) == [20_010, 20_115]
    assert any("truncated.jsonl:5: the last line is cut off" in text for text in report.warnings)
    with pytest.raises(TraceError, match=r"truncated\.jsonl:5: not JSON"):
        imported("06-one-bad-file-kills-the-import/truncated.jsonl", strict=True)


def test_a_result_whose_call_is_not_in_the_file_is_a_user_s_text():
    report = imported("06-one-bad-file-kills-the-import/orphan.jsonl")
    assert only(report).question.text == "x\nList"
    assert changes(report) == {"a tool result whose call is not in the file counts as a user's text": 1}


@settings(deadline=None, max_examples=25)
@given(cut=st.integers(1, 1_600), bad=st.sampled_from(["cut", "empty", "garbage", "middle"]))
def test_a_log_cut_anywhere_never_ends_the_import_of_another(cut, bad, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    good = (FAULTS / "17-no-arrivals-from-timestamps/in.jsonl").read_bytes()
    (folder / f"{SESSION}.jsonl").write_bytes(good)
    other = (
        good.replace(b"11111111", b"22222222")
        .replace(b'"m', b'"n')
        .replace(b"req_", b"req2_")
        .replace(b'"uuid": "', b'"uuid": "z')
    )
    shapes = {
        "cut": other[:cut],
        "empty": b"",
        "garbage": other[:cut] + b"\xff\xfe",
        "middle": other[:cut] + b"\n" + other,
    }
    (folder / "other.jsonl").write_bytes(shapes[bad])
    report = import_files([folder])
    assert SESSION in {task.task_id for task in report.tasks}
    told = report.left_out or any("cut off" in text for text in report.warnings)
    whole = shapes[bad].endswith((b"}", b"}\n")) and bad == "cut"
    assert told or whole or len(report.tasks) == 2


@pytest.mark.parametrize("number", [31, 32, 33, 500])
@pytest.mark.parametrize("kind", ["summary", "file-history-snapshot", "queue-operation", "something-new"])
def test_any_number_of_lines_may_stand_before_the_first_event(number, kind, tmp_path):
    events = [event for event in lines("08-leading-lines-unrecognised/in.jsonl") if "message" in event]
    titles = [{"type": kind, "leafUuid": f"l{index}"} for index in range(number)]
    report = import_files([written(tmp_path / "s.jsonl", titles + events)])
    assert prompts(only(report)) == [20_010, 20_115]


def test_thirty_three_summaries_stand_before_the_first_event():
    assert prompts(only(imported("08-leading-lines-unrecognised/in.jsonl"))) == [20_010, 20_115]


# 07, 12: usage


def test_thinking_behind_partial_usage_is_output():
    """7,400 characters of thinking; the next prompt grew by 2,005 tokens, of which the response has 9 characters."""
    report = imported("07-thinking-with-partial-usage/thinking_partial.jsonl")
    turn = only(report).turns[0]
    assert 1_400 < turn.reasoning_tokens <= turn.output_tokens <= 2_005
    assert turn.calls[0].response_tokens <= 9 + 4
    assert prompts(only(report)) == [20_010, 22_015]
    assert report.usage == "recorded for 50 % of calls, estimated for 50 %"


def test_hidden_thinking_behind_partial_usage_is_said_to_be_unknown():
    report = imported("07-thinking-with-partial-usage/hidden_thinking_partial.jsonl")
    assert only(report).turns[0].calls[0].response_tokens <= 9 + 4
    assert any("hidden thinking behind partial usage" in text for text in report.warnings)


@pytest.mark.parametrize("name", ["thinking_partial", "hidden_thinking_partial"])
@pytest.mark.parametrize("grown", [50, 400, 2_000, 9_000])
@pytest.mark.parametrize("output", [1, 8, 30])
def test_an_estimate_stays_within_what_the_next_prompt_grew_by(name, grown, output, tmp_path):
    events = lines(f"07-thinking-with-partial-usage/{name}.jsonl")
    for event in events[1:3]:
        event["message"]["usage"]["output_tokens"] = output
    events[-1]["message"]["usage"]["cache_creation_input_tokens"] = grown
    task = only(import_files([written(tmp_path / "s.jsonl", events)]))
    assert prompts(task) == [20_010, 20_010 + grown + 5]
    assert task.turns[0].calls[0].response_tokens <= 9 + 4
    if "hidden" not in name:
        assert task.turns[0].output_tokens <= grown + 5


def test_one_missing_usage_is_filled_in():
    report = imported("12-one-missing-usage-drops-prefix/usage_one_missing.jsonl")
    first, second = prompts(only(report))
    assert first == 20_010
    assert 20_070 < second < 20_100
    assert changes(report) == {"usage is missing in a call; it was filled in from the calls around it": 1}
    assert only(report).carries.usage == "derived"


def test_a_log_without_usage_says_what_it_lacks():
    report = imported("12-one-missing-usage-drops-prefix/nousage.jsonl")
    assert report.usage == "estimated for 100 % of calls"
    assert any("lack system prompt and tool definitions" in text for text in report.warnings)


@settings(deadline=None, max_examples=30)
@given(lost=st.sets(st.integers(0, 9), max_size=9))
def test_usage_lost_anywhere_leaves_the_other_prompts_exact(lost, tmp_path_factory):
    """Ten calls whose prompts grow by 150 tokens: what is known stays, what is not lies between."""
    events: list[dict] = []
    base = lines("17-no-arrivals-from-timestamps/in.jsonl")
    for number in range(10):
        ask, call, answer = (json.loads(json.dumps(event)) for event in base[:3])
        moment = f"2026-06-01T10:{number:02}"
        ask |= {"uuid": f"u{number}", "timestamp": f"{moment}:00Z"}
        call |= {"uuid": f"a{number}", "requestId": f"r{number}", "timestamp": f"{moment}:01Z"}
        call["message"] |= {"id": f"m{number}"}
        call["message"]["content"][0]["id"] = f"t{number}"
        call["message"]["usage"] = {"input_tokens": 20_000 + 150 * number, "output_tokens": 50}
        answer |= {"uuid": f"w{number}", "timestamp": f"{moment}:02Z"}
        answer["message"]["content"][0] |= {"tool_use_id": f"t{number}", "content": "word " * 60}
        if number in lost:
            del call["message"]["usage"]
        events += [ask, call, answer] if number == 0 else [call, answer]
    found = prompts(only(import_files([written(tmp_path_factory.mktemp("u") / "s.jsonl", events)])))
    assert len(found) == 10
    assert [found[n] for n in range(10) if n not in lost] == [
        20_000 + 150 * n for n in range(10) if n not in lost
    ]
    assert found == sorted(found)
    assert found[0] > 19_000, "the system prompt is in every prompt"


# 09, 15: copies


@pytest.mark.parametrize("name", ["p_resume", "p_resume_old"])
def test_a_resumed_session_is_counted_once(name):
    folder = f"09-resumed-copies-counted-twice/{name}"
    report = imported(folder)
    assert prompts(only(report)) == [20_010, 20_115, 20_155]
    assert len(report.left_out) == 1
    for order in (1, -1):
        paths = sorted((FAULTS / folder).iterdir())[::order]
        assert prompts(only(import_files(paths))) == [20_010, 20_115, 20_155]


def test_a_resumed_session_beside_its_first_is_counted_once():
    report = imported("09-resumed-copies-counted-twice/S1.jsonl", "09-resumed-copies-counted-twice/S2.jsonl")
    assert [(task.task_id, task.steps) for task in report.tasks] == [("S2", 3)]


def test_a_fork_starts_at_its_first_new_call(tmp_path):
    """Both go on from the same two calls: five calls in all, none twice."""
    folder = FAULTS / "09-resumed-copies-counted-twice/p_resume"
    old, new = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.iterdir())
    )
    more = []
    for number, event in enumerate(json.loads(json.dumps(new[4:6] * 2))):
        event |= {"uuid": f"f{number}", "sessionId": SESSION, "timestamp": f"2026-06-01T10:02:0{number}.000Z"}
        if event["type"] == "assistant":
            event |= {"requestId": f"req_f{number}"}
            event["message"] |= {"id": f"mf{number}"}
        more.append(event)
    written(tmp_path / f"{SESSION}.jsonl", old + more)
    written(tmp_path / "55555555-0000-4000-8000-000000000005.jsonl", new)
    report = import_files([tmp_path])
    assert {task.task_id: task.steps for task in report.tasks} == {
        SESSION: 4,
        "55555555-0000-4000-8000-000000000005": 1,
    }
    fork = report.tasks[1]
    assert prompts(fork) == [20_155]
    assert fork.arrival_s == 60


def test_a_line_that_stands_there_twice_is_read_once():
    report = imported("15-duplicate-lines/in.jsonl")
    once = only(imported("17-no-arrivals-from-timestamps/in.jsonl"))
    assert (only(report).turns, only(report).answer) == (once.turns, once.answer)
    assert changes(report) == {"a line that stands there twice (same uuid) was left out": 2}


@pytest.mark.parametrize("uuid", ["other", None])
def test_a_call_repeated_under_another_uuid_is_one_call(uuid, tmp_path):
    events = lines("15-duplicate-lines/in.jsonl")
    for index in (2, 5):
        events[index]["uuid"] = f"{uuid}{index}"
        if uuid is None:
            del events[index]["uuid"]
    task = only(import_files([written(tmp_path / "s.jsonl", events)]))
    assert [len(turn.calls) for turn in task.turns] == [1]
    assert task.answer.text == "There are two files, a.py and b.py."


# 13: compaction


def test_a_compaction_s_call_is_a_step_of_the_session_before_its_reset():
    """It read the whole context, 20,110 tokens, and asked for the summary with 605 more; the next prompt is 16,505."""
    report = imported("13-compaction-agent-as-own-task/p_comp")
    task = only(report)
    assert prompts(task) == [20_010, 20_115, 20_715, 16_505]
    assert [turn.reset is not None for turn in task.turns] == [False, False, False, True]
    assert task.turns[2].output_tokens == 900
    assert task.turns[1].user_wait_s == 1
    assert task.turns[3].reset.keep_tokens > 400, "the summary is no part of what every prompt begins with"


def test_a_compaction_that_ended_the_session_is_its_last_step(tmp_path):
    folder = "13-compaction-agent-as-own-task/p_comp"
    main = lines(f"{folder}/{SESSION}.jsonl")[:4]
    side = lines(f"{folder}/{SESSION}/subagents/agent-acompact-1.jsonl")
    written(tmp_path / f"{SESSION}.jsonl", main)
    written(tmp_path / SESSION / "subagents/agent-acompact-1.jsonl", side)
    assert prompts(only(import_files([tmp_path]))) == [20_010, 20_115, 20_715]


# 14: pictures


def test_a_picture_is_part_of_its_response():
    call = only(imported("14-image-response-not-evictable/in.jsonl")).turns[0].calls[0]
    assert 1_500 < call.response_tokens <= 1_545


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "tool_reference", "tool_name": "Bash"},
        {"type": "hologram", "data": [1, 2, 3]},
    ],
)
def test_no_part_of_a_response_is_dropped_without_a_count(part, tmp_path):
    events = lines("14-image-response-not-evictable/in.jsonl")
    events[2]["message"]["content"][0]["content"] = [part]
    report = import_files([written(tmp_path / "s.jsonl", events)])
    assert any(f"type {part['type']}" in text for text in report.warnings)
    assert only(report).turns[0].calls[0].response_tokens > 4


# 17: arrivals


def test_sessions_arrive_when_they_began(tmp_path):
    events = lines("17-no-arrivals-from-timestamps/in.jsonl")
    written(tmp_path / "a.jsonl", events)
    later = json.loads(json.dumps(events).replace("T10:00", "T10:07").replace("11111111", "77777777"))
    for event in later:
        event["uuid"] += "z"
        if event["type"] == "assistant":
            event["requestId"] += "z"
    written(tmp_path / "b.jsonl", later)
    assert [task.arrival_s for task in import_files([tmp_path]).tasks] == [0, 420]


# 19: rewinds


def test_a_branch_does_not_hold_what_was_taken_back():
    """Recorded prompts: 20,010, then 20,415, then, back behind the first answer, 20,715 and 20,735."""
    report = imported("19-rewind-as-continuation/in.jsonl")
    task = only(report)
    assert prompts(task) == [20_010, 20_415, 20_715, 20_735]
    assert [turn.template_tokens for turn in task.turns] == [400, 0, 15]
    assert task.turns[2].reset is not None


def test_parallel_results_are_no_rewind(tmp_path):
    """Each result's parent is its own call's line; the next call's parent is the last result."""
    events = lines("19-rewind-as-continuation/in.jsonl")[:2]
    first = events[1]["message"]
    first["usage"]["output_tokens"] = 40
    second = json.loads(json.dumps(events[1])) | {"uuid": "a1b", "parentUuid": "a1"}
    for number, message in enumerate((first, second["message"])):
        message["content"] = [{"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"n": number}}]
    results = [
        {
            **events[0],
            "uuid": f"r{number}",
            "parentUuid": parent,
            "timestamp": f"2026-06-01T10:00:0{4 + number}Z",
            "message": {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": "ok"}],
            },
        }
        for number, parent in enumerate(("a1", "a1b"))
    ]
    answer = json.loads(json.dumps(lines("19-rewind-as-continuation/in.jsonl")[3])) | {"parentUuid": "r0"}
    for order in (results, results[::-1]):
        report = import_files([written(tmp_path / "s.jsonl", [*events, second, *order, answer])])
        assert changes(report) == {}
        assert [len(turn.calls) for turn in only(report).turns] == [2]


def test_a_question_taken_back_before_its_answer_is_left_out(tmp_path):
    events = lines("19-rewind-as-continuation/in.jsonl")
    del events[3]
    report = import_files([written(tmp_path / "s.jsonl", events)])
    task = only(report)
    assert not any(turn.reset for turn in task.turns)
    assert task.turns[0].template_text.startswith("Second attempt")
    assert changes(report) == {"a message that a user took back before it was answered was left out": 1}
