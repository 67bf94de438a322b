# SPDX-License-Identifier: Apache-2.0
"""RunRecord (SPEC.md): the same content gives the same bytes, and only what is whole reads as a record."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import sqsim.record.files
from sqsim.errors import RecordError, RunError
from sqsim.record.files import check_writable, identity, read_record, write_record
from sqsim.record.schema import AUX, ENGINE, EVICTIONS, SCHEMA, TABLES, TASKS, TURNS, Rows, RunRecord
from tests.sqsim.tiny_record import table, tiny_record

# SPEC.md, "RunRecord", with parent and kv_used_mean.
COLUMNS = {
    "tasks": "task start_s end_s outcome turns output_tokens peak_tokens kv_read_tokens_main kv_read_tokens_aux parent",
    "turns": "task turn submit_s admit_s first_token_s end_s tool_end_s prompt_tokens cached_tokens computed_tokens"
    " output_tokens resident_tokens_after shift retractions prefill_chunks",
    "aux": "task spawn_turn submit_s first_token_s end_s state fork_tokens prompt_tokens cached_tokens output_tokens"
    " named ignored applied_turn text",
    "evictions": "task turn time_s cursor tokens by age_turns last_use_turn used_later",
    "engine": "t0_s t1_s mode steps requests new_tokens context_tokens running waiting kv_running kv_idle_sessions"
    " kv_aux kv_tree_evictable kv_free kv_used_mean swa_used retracted reclaimed_tokens released_sessions new_token_ratio",
}
FILES = ["run.json", "timing.json", *(f"{name}.parquet" for name in TABLES)]


@pytest.fixture
def written(tmp_path):
    write_record(tiny_record(), tmp_path / "run")
    return tmp_path / "run"


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_specs_columns(name):
    assert TABLES[name].names == COLUMNS[name].split()


def test_a_record_reads_back_as_it_was_written(written):
    record, back = tiny_record(), read_record(written)
    assert back.run == {"schema": "sqrun/1", **record.run}
    assert back.timing == record.timing
    for name, schema in TABLES.items():
        assert back.table(name).equals(record.table(name))
        assert back.table(name).schema.equals(schema)


def test_an_empty_record_reads_back(tmp_path):
    write_record(RunRecord(run={}), tmp_path / "run")
    assert [read_record(tmp_path / "run").table(name).num_rows for name in TABLES] == [0] * 5


def test_tables_are_plain_parquet(written):
    """Any reader of Parquet reads them: no index, no hidden columns."""
    assert pq.read_table(written / "turns.parquet").column_names == COLUMNS["turns"].split()


def test_identical_content_gives_identical_bytes(written, tmp_path):
    write_record(tiny_record(), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(written)
    assert identity(tmp_path / "again") == identity(written)


def test_bytes_do_not_depend_on_how_the_rows_came_together(written, tmp_path):
    record = tiny_record()
    rows = record.turns.to_pylist()
    whole = Rows(TURNS)
    for row in rows:
        whole.append(**row)
        whole.table()  # closes a chunk
    record.turns = whole.table()
    assert record.turns["task"].num_chunks == len(rows)
    write_record(record, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(written)


def test_json_keys_are_sorted(written):
    for name in ("run.json", "timing.json"):
        content = json.loads((written / name).read_text())
        assert list(content) == sorted(content)


def test_identity_leaves_out_timing_and_nothing_else(written, tmp_path):
    before = identity(written)
    record = tiny_record()
    record.timing = {"wall_s": 99.0}
    write_record(record, tmp_path / "slower")
    assert identity(tmp_path / "slower") == before
    record.run["scenario"] = {"seed": 1}
    write_record(record, tmp_path / "other")
    assert identity(tmp_path / "other") != before
    (written / "turns.parquet").write_bytes(b"")
    assert identity(written) != before


def test_rows_spill_into_arrow_and_lose_nothing():
    many = Rows(EVICTIONS)
    row = tiny_record().evictions.to_pylist()[0]
    number = (1 << 16) + 3
    for index in range(number):
        many.append(**{**row, "cursor": index})
    assert many.table()["cursor"].to_pylist() == list(range(number))


@pytest.mark.parametrize("change", [{"extra": 1}, {"cursor": None}])
def test_a_wrong_column_is_an_error(change):
    row = tiny_record().evictions.to_pylist()[0] | change
    if change == {"cursor": None}:
        del row["cursor"]
    with pytest.raises(TypeError, match=r"extra|cursor"):
        Rows(EVICTIONS).append(**row)


@pytest.mark.parametrize(
    ("column", "value"), [("cursor", None), ("time_s", float("nan")), ("time_s", float("inf"))]
)
def test_an_empty_or_endless_value_is_never_written(tmp_path, column, value):
    record = tiny_record()
    record.evictions = table(EVICTIONS, tuple((record.evictions.to_pylist()[0] | {column: value}).values()))
    with pytest.raises(ValueError, match=f"evictions column {column}"):
        write_record(record, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [TASKS, AUX, ENGINE])
def test_a_table_of_another_schema_is_never_written(tmp_path, wrong):
    record = tiny_record()
    record.turns = wrong.empty_table()
    with pytest.raises(ValueError, match="turns has the columns"):
        write_record(record, tmp_path / "run")


def test_nothing_is_overwritten_silently(written):
    before = contents(written)
    with pytest.raises(RecordError, match=r"run: a record is there already; .*--overwrite"):
        write_record(tiny_record(), written)
    assert contents(written) == before


def test_overwrite_replaces_a_record_whole(written, tmp_path):
    (written / "left over").write_text("of the old run")
    record = tiny_record()
    record.run["scenario"] = {"seed": 5}
    write_record(record, written, overwrite=True)
    assert sorted(contents(written)) == sorted(FILES)
    assert read_record(written).run["scenario"] == {"seed": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["precious.txt", "run.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_record_is_never_replaced(tmp_path, name, overwrite):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / name).write_text("{}")
    with pytest.raises(RecordError, match="not a record, so it is never replaced"):
        write_record(tiny_record(), tmp_path / "home", overwrite)
    assert (tmp_path / "home" / name).read_text() == "{}"


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file: exists and is not a directory"):
        write_record(tiny_record(), tmp_path / "file", overwrite=True)
    with pytest.raises(RecordError, match=r"run: no directory can be made in .*file; choose another"):
        write_record(tiny_record(), tmp_path / "file" / "run")


def test_an_empty_directory_is_free_and_parents_are_made(tmp_path):
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "new" / "deep"):
        check_writable(target)
        write_record(tiny_record(), target)
        assert read_record(target).run["kind"] == "simulated"


def faults_at(call, error):
    """An os.fsync that works until its `call`-th call."""
    real, calls = os.fsync, iter(range(1000))

    def fsync(handle):
        if next(calls) == call:
            raise error
        real(handle)

    return fsync


@pytest.mark.parametrize("call", range(8))
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
@pytest.mark.parametrize("existing", [False, True], ids=["new", "replacing"])
def test_a_write_that_is_cut_short_leaves_what_was_there(tmp_path, monkeypatch, call, error, existing):
    """At whichever file it happens: no new record, no remains, and an old record as it was."""
    target = tmp_path / "run"
    if existing:
        write_record(tiny_record(), target)
    before = contents(target) if existing else None
    changed = tiny_record()
    changed.run["scenario"] = {"seed": 5}
    monkeypatch.setattr(os, "fsync", faults_at(call, error))
    expected = RunError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_record(changed, target, overwrite=existing)
    monkeypatch.undo()
    if expected is RunError:
        assert str(caught.value).startswith(f"{target}: cannot be written: No space left on device; ")
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if existing else [])
    assert not existing or contents(target) == before


def test_a_rename_that_fails_puts_the_old_record_back(written, tmp_path, monkeypatch):
    real, before = Path.rename, contents(written)

    def rename(path, target):
        if path.name.endswith(".partial"):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RunError, match="Input/output error"):
        write_record(tiny_record(), written, overwrite=True)
    assert contents(written) == before
    assert list(tmp_path.iterdir()) == [written]


def test_a_partial_directory_does_not_read_as_a_record(tmp_path, monkeypatch):
    """Killed outright at any file: what lies there under its temporary name is not whole, run.json comes last."""
    monkeypatch.setattr(shutil, "rmtree", lambda *_args, **_kwargs: None)
    for call in range(6):
        monkeypatch.setattr(os, "fsync", faults_at(call, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            write_record(tiny_record(), tmp_path / f"run{call}")
    left = list(tmp_path.iterdir())
    assert len(left) == 6
    for directory in left:
        with pytest.raises(RecordError, match=r"not a whole record: run\.json"):
            read_record(directory)


@pytest.mark.parametrize("name", FILES)
def test_a_record_that_lacks_a_file_is_refused(written, name):
    (written / name).unlink()
    for reader in (read_record, identity):
        with pytest.raises(RecordError, match=f"not a whole record: {name} missing; run the scenario again"):
            reader(written)


@pytest.mark.parametrize("name", [f"{name}.parquet" for name in TABLES])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "swapped"])
def test_a_damaged_table_is_refused(written, name, damage):
    file = written / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    other = written / ("turns.parquet" if name != "turns.parquet" else "tasks.parquet")
    file.write_bytes(
        {"cut": content[:-9], "flipped": content, "empty": b"", "swapped": other.read_bytes()}[damage]
    )
    with pytest.raises(RecordError, match=rf"{name}: damaged"):
        read_record(written)


@pytest.mark.parametrize("name", ["run.json", "timing.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "\xff", "[" * 100_000, '{"wall_s": NaN}'])
def test_a_damaged_json_file_is_refused(written, name, text):
    (written / name).write_text(text, encoding="latin-1")
    with pytest.raises(RecordError, match=name):
        read_record(written)


def test_no_value_of_run_json_can_change_unnoticed(written):
    """Whichever value is replaced, dropped or added: the record is damaged, and says so before it is used."""
    path = written / "run.json"
    sound = json.loads(path.read_text())
    for key in sound.keys() - {"schema"}:
        without = {name: value for name, value in sound.items() if name != key}
        for changed in (without, {**sound, key: None}, {**sound, key: {"tokens": "x"}}):
            path.write_text(json.dumps(changed))
            with pytest.raises(RecordError, match=r"run\.json: damaged, changed by hand"):
                read_record(written)
    path.write_text(json.dumps({**sound, "more": 1}))
    with pytest.raises(RecordError, match=r"run\.json: damaged, changed by hand"):
        read_record(written)
    path.write_text(json.dumps(sound))
    assert read_record(written).run == tiny_record().run | {"schema": SCHEMA}


def test_a_record_that_appeared_meanwhile_is_not_replaced_unasked(tmp_path, monkeypatch):
    """Two runs into one directory: both found it free, the second to end does not replace the first one's record."""
    first = tiny_record()
    first.run["scenario"] = {"seed": 5}
    write_record(first, tmp_path / "run")
    before = contents(tmp_path / "run")
    monkeypatch.setattr(sqsim.record.files, "check_writable", lambda *_: None)
    with pytest.raises(RunError, match="Directory not empty"):
        write_record(tiny_record(), tmp_path / "run")
    assert contents(tmp_path / "run") == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_name_that_is_not_utf8_is_a_name(tmp_path):
    path = tmp_path / os.fsdecode(b"r\xff")
    write_record(tiny_record(), path)
    assert read_record(path).tasks.num_rows == 2


def test_a_record_of_another_version_is_refused_by_name(written):
    run = json.loads((written / "run.json").read_text())
    (written / "run.json").write_text(json.dumps({**run, "schema": "sqrun/2"}))
    with pytest.raises(RecordError, match="schema is 'sqrun/2', this version reads 'sqrun/1'"):
        read_record(written)
    write_record(tiny_record(), written, overwrite=True)  # it is a record all the same


def test_a_run_that_was_not_completed_is_read_only_on_request(tmp_path):
    record = tiny_record()
    record.run["status"] = "incomplete"
    write_record(record, tmp_path / "run")
    with pytest.raises(RecordError, match="not completed"):
        read_record(tmp_path / "run")
    assert read_record(tmp_path / "run", allow_incomplete=True).tasks.num_rows == 2


@pytest.mark.parametrize("work", ["plan", "region", "sweep"])
def test_what_is_no_run_is_named_as_what_it_is(tmp_path, work):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"{work}.json").write_text("{}")
    with pytest.raises(
        RecordError, match=f"out: holds a {work}, no run; `sqsim report .*out -o FILE.html` shows it"
    ):
        read_record(tmp_path / "out")
    with pytest.raises(RecordError, match=f"{work}.json: is no directory; give the --output-dir of a run"):
        read_record(tmp_path / "out" / f"{work}.json")


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RecordError, match="nowhere: no such directory; give the --output-dir of a run"):
        read_record(tmp_path / "nowhere")


def test_a_symbolic_link_to_a_record_is_replaced_and_its_target_kept(written, tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(written, target_is_directory=True)
    before = contents(written)
    record = tiny_record()
    record.run["scenario"] = {"seed": 5}
    write_record(record, link, overwrite=True)
    assert contents(written) == before
    assert read_record(link).run["scenario"] == {"seed": 5}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "run"]
