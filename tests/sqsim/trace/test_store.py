# SPDX-License-Identifier: Apache-2.0
"""Traces on disk: what is written is read, and every kind of bad file is named with file, line, field and fix."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsim.errors import RunError, TraceError
from sqsim.trace.importing import import_files
from sqsim.trace.schema import SCHEMA, Task
from sqsim.trace.store import read_tasks, write_tasks
from tests.sqsim.tasks import chain, tasks


def line(**changes) -> str:
    """A sound task as a line of JSON, with top-level fields replaced (`None` removes one)."""
    value = {
        "schema": SCHEMA,
        "task_id": "t",
        "source": {"format": "hand"},
        "carries": {},
        "prefix": {"id": "p", "tokens": 5},
        "question": {"tokens": 5},
        "turns": [],
        "answer": {"reasoning_tokens": 1, "text_tokens": 1},
    }
    value.update(changes)
    return json.dumps({key: part for key, part in value.items() if part is not None})


def fault(tmp_path, content: bytes | str, name: str = "bad.jsonl") -> TraceError:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TraceError) as caught:
        list(read_tasks(path))
    assert caught.value.file == path
    assert caught.value.fix
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
@settings(deadline=None, max_examples=50)
@given(drawn=st.lists(tasks(), min_size=1, max_size=4))
def test_what_is_written_is_read(name, drawn, tmp_path_factory):
    drawn = [task.model_copy(update={"task_id": f"t{index}"}) for index, task in enumerate(drawn)]
    path = tmp_path_factory.mktemp("round") / name
    assert write_tasks(path, iter(drawn)) == len(drawn)
    assert list(read_tasks(path)) == drawn
    assert sorted(p.name for p in path.parent.iterdir()) == [name], "no temporary file is left"


def test_zst_is_compressed_and_plain_is_not(tmp_path):
    write_tasks(tmp_path / "a.jsonl", [chain(3)])
    write_tasks(tmp_path / "a.jsonl.zst", [chain(3)])
    plain = (tmp_path / "a.jsonl").read_bytes()
    assert json.loads(plain)["schema"] == SCHEMA
    assert (
        zstandard.ZstdDecompressor().decompressobj().decompress((tmp_path / "a.jsonl.zst").read_bytes())
        == plain
    )


def test_frames_one_after_the_other_are_one_file(tmp_path):
    """`cat a.zst b.zst` is a zstd file."""
    parts = [zstandard.ZstdCompressor().compress(f"{line(task_id=name)}\n".encode()) for name in "ab"]
    (tmp_path / "two.jsonl.zst").write_bytes(b"".join(parts))
    assert [task.task_id for task in read_tasks(tmp_path / "two.jsonl.zst")] == ["a", "b"]


def test_blank_lines_and_a_byte_order_mark_are_no_tasks(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"﻿{line()}\r\n\n{line(task_id='u')}", encoding="utf-8")
    assert [task.task_id for task in read_tasks(path)] == ["t", "u"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_tasks(path, [chain(2)])
    before = path.read_bytes()

    def failing():
        yield chain(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tasks(path, failing())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_to_write_is_an_error_and_no_file(tmp_path):
    with pytest.raises(TraceError, match="no task to write"):
        write_tasks(tmp_path / "trace.jsonl", [])
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_sound_is_not_written(tmp_path):
    with pytest.raises(TraceError, match="used by an earlier task"):
        write_tasks(tmp_path / "trace.jsonl", [chain(2), chain(2)])
    assert list(tmp_path.iterdir()) == []


def test_directories_above_a_trace_are_made(tmp_path):
    path = tmp_path / "new" / "deep" / "trace.jsonl"
    write_tasks(path, [chain(2)])
    assert list(read_tasks(path)) == [chain(2)]


def test_what_cannot_be_written_is_a_failed_run_and_no_wrong_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/trace\.jsonl: cannot be written") as caught:
        write_tasks(tmp_path / "file" / "trace.jsonl", [chain(2)])
    assert caught.value.exit_code == 1


def test_a_pipe_is_named_as_one(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(
        TraceError, match=r"pipe\.jsonl: is a pipe or a device, which cannot be read twice; write"
    ):
        list(read_tasks(tmp_path / "pipe.jsonl"))


@pytest.mark.parametrize("name", ["pipe.jsonl", "pipe.pkl", "pipe.har", "pipe.csv"])
def test_an_import_does_not_wait_for_a_pipe(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(TraceError, match="is a pipe or a device"):
        import_files([tmp_path / name])


def test_a_trace_is_streamed(tmp_path):
    """The first task is there before the last line is read."""
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{line()}\n{'x' * 10}\n")
    stream = read_tasks(path)
    assert next(stream).task_id == "t"
    with pytest.raises(TraceError):
        next(stream)


FORM = {  # fault: (second line of a file, field, part of the message)
    "garbage": ("hello", None, "invalid JSON"),
    "cut line": (line()[:-20], None, "invalid JSON"),
    "not an object": ("[1, 2]", None, "should be an object"),
    "NaN": (line(arrival_s=float("nan")), "arrival_s", "nan: input should be a finite number"),
    "Infinity": (line(arrival_s=float("inf")), "arrival_s", "inf: input should be a finite number"),
    "1e999": (line(arrival_s="@").replace('"@"', "1e999"), "arrival_s", "finite number"),
    "negative arrival": (line(arrival_s=-1.0), "arrival_s", "greater than or equal to 0"),
    "arrival in nanoseconds": (line(arrival_s=1.7e18), "arrival_s", "less than or equal to"),
    "negative tokens": (line(question={"tokens": -1}), "question.tokens", "greater than or equal to 0"),
    "huge tokens": (line(question={"tokens": 10**30}), "question.tokens", "less than or equal to 1000000000"),
    "5000 digits": (line(question={"tokens": "@"}).replace('"@"', "9" * 5000), None, "invalid JSON"),
    "tokens as a float": (line(question={"tokens": 1.5}), "question.tokens", "valid integer"),
    "tokens as a text": (line(question={"tokens": "5"}), "question.tokens", "valid integer"),
    "tokens as a bool": (line(question={"tokens": True}), "question.tokens", "valid integer"),
    "unknown field": (line(colour="red"), "colour", "not a field of sqtrace/1"),
    "missing field": (line(question=None), "question", "is missing"),
    "another version": (line(schema="sqtrace/2"), "schema", "'sqtrace/2'"),
    "empty id": (line(task_id=""), "task_id", "at least 1 character"),
    "nested too deeply": ("[" * 100_000, None, "invalid JSON"),
}


@pytest.mark.parametrize("case", FORM)
def test_a_line_of_bad_form_is_named(case, tmp_path):
    bad, field, message = FORM[case]
    error = fault(tmp_path, f"{line()}\n{bad}\n")
    assert (error.line, error.field) == (2, field)
    assert message in str(error)


def test_the_json_path_reaches_into_lists(tmp_path):
    turn = {"reasoning_tokens": 1, "text_tokens": 0, "calls": []}
    call = {"tool": "open", "call_tokens": 3, "cursor": 0, "response_tokens": 9}
    error = fault(tmp_path, line(turns=[turn, {**turn, "calls": [call]}]))
    assert (error.line, error.field, error.problem) == (1, "turns[1].calls[0].latency_s", "is missing")


def test_further_faults_of_a_line_are_counted(tmp_path):
    error = fault(tmp_path, line(question={"tokens": -1}, prefix={"id": 3, "tokens": 1}))
    assert "(and 1 more)" in str(error)


BYTES = {  # fault: (file name, content, part of the message)
    "zero bytes": ("a.jsonl", b"", "empty (0 bytes)"),
    "white space only": ("a.jsonl", b" \n\n", "holds nothing"),
    "zero bytes, compressed": ("a.jsonl.zst", b"", "empty (0 bytes)"),
    "an empty frame": ("a.jsonl.zst", zstandard.ZstdCompressor().compress(b""), "holds nothing"),
    "not UTF-8": ("a.jsonl", line().encode() + b"\n\xff\xfe\n", "not UTF-8"),
    "compressed without .zst": ("a.jsonl", zstandard.ZstdCompressor().compress(b"x" * 99), "not JSON"),
    "plain with .zst": ("a.jsonl.zst", line().encode(), "not zstd"),
    "truncated zst": (
        "a.jsonl.zst",
        zstandard.ZstdCompressor().compress(line().encode())[:-5],
        "cut short",
    ),
    "no format": ("a.jsonl", b'{"colour": "red", "size": 3}', "an object with colour, size"),
    "a text": ("a.jsonl", b'"hello"', "no importer recognises it"),
    "an empty list": ("a.json", b"[]", "no importer recognises it"),
    "garbage first": ("a.jsonl", b"hello\n" + line().encode(), "not JSON"),
    "NaN first": ("a.jsonl", b'{"input_length": NaN}', "NaN is not a number"),
}


@pytest.mark.parametrize("case", BYTES)
def test_a_bad_file_is_named(case, tmp_path):
    name, content, message = BYTES[case]
    assert message in str(fault(tmp_path, content, name))


def test_the_line_that_is_not_utf8_is_named(tmp_path):
    assert fault(tmp_path, line().encode() + b"\n\xff\xfe\n").line == 2


def test_a_truncated_trace_is_an_error_wherever_it_was_cut(tmp_path):
    """No cut of a compressed trace reads as a shorter trace."""
    path = tmp_path / "whole.jsonl.zst"
    write_tasks(path, [chain(20, name=f"t{index}") for index in range(50)])
    whole = path.read_bytes()
    for keep in range(1, len(whole), 97):
        cut = tmp_path / "cut.jsonl.zst"
        cut.write_bytes(whole[:keep])
        with pytest.raises(TraceError):
            list(read_tasks(cut))


def test_no_damaged_trace_reads_as_another(tmp_path):
    """Whatever bit of a compressed trace was turned, it is an error and no other trace."""
    path = tmp_path / "whole.jsonl.zst"
    written = [chain(20, name=f"t{index}") for index in range(5)]
    write_tasks(path, written)
    whole = path.read_bytes()
    damaged = tmp_path / "damaged.jsonl.zst"
    read_wrong = []
    for at in range(len(whole)):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with contextlib.suppress(TraceError):
            read_wrong += [at] if list(read_tasks(damaged)) != written else []
    assert not read_wrong


def test_a_missing_file_and_a_directory_without_traces_are_named(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        list(read_tasks(tmp_path / "nowhere.jsonl"))
    (tmp_path / "README.md").write_text("no trace")
    (tmp_path / "data.json").write_text('{"colour": "red"}')
    with pytest.raises(TraceError, match="holds nothing that can be imported"):
        list(read_tasks(tmp_path))


def test_ids_are_new_over_all_files_of_a_directory(tmp_path):
    write_tasks(tmp_path / "a.jsonl", [chain(2)])
    write_tasks(tmp_path / "b.jsonl", [chain(2, name="u"), chain(2)][::-1])
    with pytest.raises(TraceError, match="task_id: 't' was used by an earlier task") as caught:
        list(read_tasks(tmp_path))
    assert (caught.value.file, caught.value.line) == (tmp_path / "b.jsonl", 1)


def test_schema_is_frozen():
    task = chain(2)
    with pytest.raises(ValueError, match="frozen"):
        task.task_id = "u"
    assert isinstance(task, Task)
