# SPDX-License-Identifier: Apache-2.0
"""Recognising formats by their content, and filling in what a file lacks, labelled."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import zstandard

from sqsim.errors import InputError, TraceError
from sqsim.trace.formats import FORMATS
from sqsim.trace.importing import import_files
from sqsim.trace.references import references
from sqsim.trace.store import read_tasks, write_tasks
from tests.sqsim.tasks import chain

TRACES = Path(__file__).parents[3] / "traces"

KNOWN = {
    "weka/trace_0617.json": "weka_trace: one object with id, block_size and requests[] (3 of 3 keys)",
    "claude_code/session.jsonl": "claude_code: 19 of the first 32 lines are user or assistant events with sessionId and message",
    "codex/session.jsonl": "codex: 32 of the first 32 lines are session_meta, response_item or event_msg with a payload",
    "tau_bench/airline_gpt4o.json": "openai_chat: 10 of 10 values hold messages with role and content, 50 with tool calls",
    "webdancer/sample_traj_cut.jsonl": "react_text: messages whose assistant texts hold <think>, <tool_call>, <answer>",
    "mooncake/conversation_head300.jsonl": "mooncake_trace: every line has input_length and output_length, some timestamp, hash_ids",
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_format_is_recognised_and_its_evidence_named(name):
    report = import_files([TRACES / name])
    assert [tuple(each) for each in report.evidence] == [(str(TRACES / name), KNOWN[name])]


@pytest.mark.parametrize("name", KNOWN)
def test_a_file_is_of_one_format_only(name, tmp_path):
    """No second importer would have taken it, but for chat text that ReAct text is a special case of."""
    from sqsim.trace.formats.base import SourceFile

    head = SourceFile(TRACES / name).head
    takers = [known.name for known in FORMATS.values() if known.evidence(head) is not None]
    assert takers == (["react_text", "openai_chat"] if "webdancer" in name else [KNOWN[name].split(":")[0]])


@pytest.mark.parametrize("name", KNOWN)
def test_imports_are_written_and_read_again(name, tmp_path):
    tasks = import_files([TRACES / name]).tasks
    write_tasks(tmp_path / "t.jsonl.zst", tasks)
    assert list(read_tasks(tmp_path / "t.jsonl.zst")) == tasks
    assert list(read_tasks(TRACES / name)) == tasks, "a file is read as it is imported"


def test_the_traces_folder_is_importable_as_a_whole():
    """2 + 1 + 1 sessions and 4 sub-agents of WEKA, 10 + 3 + 1 + 1 conversations, 300 requests."""
    report = import_files([TRACES])
    assert len(report.tasks) == 3 + 4 + 10 + 3 + 1 + 1 + 300
    assert len(report.evidence) == 8


def test_a_source_names_its_file_and_its_content():
    (task,) = import_files([TRACES / "weka/trace_0617.json"], licence="Apache-2.0").tasks
    assert (task.source.format, task.source.file, task.source.licence) == (
        "weka_trace",
        "trace_0617.json",
        "Apache-2.0",
    )
    assert len(task.source.sha256) == 64


def test_a_compressed_file_of_any_format_is_read(tmp_path):
    plain = TRACES / "weka/trace_0617.json"
    (tmp_path / "w.json.zst").write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    (ours,), (theirs,) = import_files([tmp_path / "w.json.zst"]).tasks, import_files([plain]).tasks
    assert ours.turns == theirs.turns


def test_sqtrace_is_passed_through(tmp_path):
    write_tasks(tmp_path / "t.jsonl", [chain(3)])
    report = import_files([tmp_path / "t.jsonl"])
    assert report.tasks == [chain(3)]
    assert report.evidence[0].text == "sqtrace/1: the first line says so"
    assert report.carries["references"] == {"recorded": 1}


def test_a_format_can_be_told():
    report = import_files([TRACES / "webdancer/sample_traj_cut.jsonl"], "openai_chat")
    assert report.evidence[0].text == "openai_chat: as told"
    assert report.tasks[0].turns[0].calls == (), "chat knows no tags"
    with pytest.raises(
        TraceError, match=r"format 'wekka' does not exist; choose auto, sqtrace/1 or .*weka_trace"
    ):
        import_files([TRACES], "wekka")


def test_a_file_told_to_be_of_another_format_is_an_error():
    with pytest.raises(TraceError, match="block_size: is missing"):
        import_files([TRACES / "mooncake/conversation_head300.jsonl"], "weka_trace")


def test_files_of_no_format_in_a_directory_are_counted(tmp_path):
    write_tasks(tmp_path / "t.jsonl", [chain(3)])
    (tmp_path / "notes.json").write_text('{"colour": "red"}')
    (tmp_path / "README.md").write_text("words")
    (tmp_path / ".hidden.json").write_text("garbage")
    report = import_files([tmp_path])
    assert report.warnings == {"a file was left out": 1}
    ((path, reason),) = report.left_out
    assert path == str(tmp_path / "notes.json")
    assert reason.startswith("no importer recognises it; it begins with an object with colour")
    with pytest.raises(TraceError, match="no importer recognises it"):
        import_files([tmp_path], strict=True)


def test_what_reading_changed_is_logged(caplog):
    with caplog.at_level(logging.WARNING):
        list(read_tasks(TRACES / "weka/trace_0519.json"))
    assert "a request has no api_time; the file's median time a token stands in (2 times)" in caplog.text


def test_synthesised_references_are_keyed_by_the_seed():
    path = TRACES / "weka/trace_0277.json"
    made, again, other = (import_files([path], seed=seed).tasks for seed in (0, 0, 1))
    assert made == again
    assert [references(task) for task in made] != [references(task) for task in other]


def test_references_none_leaves_them_absent_and_derived_ones_alone():
    bare = import_files([TRACES / "weka"], references="none").tasks
    assert {task.carries.references for task in bare} == {"absent"}
    assert not any(steps for task in bare for steps in references(task).values())
    (told,) = import_files([TRACES / "claude_code"], references="none").tasks
    assert told.carries.references == "derived"


def test_timing_is_drawn_by_tool_where_it_is_absent():
    """FORMATS.md: web calls 0.2-4 s around 2 s with some at 16-19 s."""
    tasks = import_files([TRACES / "tau_bench"]).tasks
    waits = [call.latency_s for task in tasks for turn in task.turns for call in turn.calls]
    assert all(0.2 <= wait <= 19 for wait in waits)
    assert 1 < sorted(waits)[len(waits) // 2] < 3
    assert {task.carries.timing for task in tasks} == {"synthesised"}
    bare = import_files([TRACES / "tau_bench"], timing="none").tasks
    assert {task.carries.timing for task in bare} == {"absent"}
    assert not any(call.latency_s for task in bare for turn in task.turns for call in turn.calls)


def test_recorded_timing_is_never_replaced():
    drawn, bare = (import_files([TRACES / "claude_code"], timing=how).tasks for how in ("synthesise", "none"))
    assert drawn == bare


@pytest.mark.parametrize("option", ["references", "timing"])
def test_an_unknown_choice_is_refused(option):
    with pytest.raises(InputError, match=f"{option} 'yes' does not exist; choose synthesise or none"):
        import_files([TRACES], **{option: "yes"})


def test_a_broken_line_far_behind_the_head_is_named(tmp_path):
    good = json.dumps({"input_length": 5, "output_length": 1})
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join([good] * 99 + ["{oops", good]))
    with pytest.raises(TraceError, match="not JSON") as caught:
        import_files([path])
    assert caught.value.line == 100


def test_a_broken_document_is_named_with_its_line(tmp_path):
    path = tmp_path / "w.json"
    path.write_text('{\n "id": "x",\n "block_size": 64,\n "requests": [oops]\n}')
    with pytest.raises(TraceError, match="not JSON") as caught:
        import_files([path])
    assert caught.value.line == 4


def test_what_is_no_json_is_refused_with_the_list_of_what_can_be_imported(tmp_path):
    path = tmp_path / "requests.txt"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4808,10\n")
    with pytest.raises(
        TraceError, match=r"requests\.txt:1: not JSON.*importable are sqtrace/1, .*weka_trace, "
    ):
        import_files([path])


@pytest.mark.parametrize(
    ("content", "problem"), [("[" * 100_000, "nested too deeply"), ('[{"a": NaN}]', "NaN")]
)
def test_values_that_python_cannot_hold_are_named_with_their_fix(tmp_path, content, problem):
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(TraceError, match=f"{problem}.*give finite numbers, and few lists inside lists"):
        import_files([path])
