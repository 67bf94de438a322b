# SPDX-License-Identifier: Apache-2.0
"""SGLang's request dumps are read, and nothing that a pickle asks for is ever executed."""

from __future__ import annotations

import builtins
import copyreg
import os
import pickle
import struct
import subprocess
import sys
import types
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqsim.errors import TraceError
from sqsim.trace.importing import import_files

IO_STRUCT = "sglang.srt.managers.io_struct"


@pytest.fixture
def io_struct(monkeypatch):
    """Modules named as SGLang's, to write pickles with; the reader must not need them."""
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", IO_STRUCT):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name in ("GenerateReqInput", "EmbeddingReqInput", "ServerArgs"):
        made = type(name, (), {"__module__": IO_STRUCT})
        setattr(sys.modules[IO_STRUCT], name, made)
    return sys.modules[IO_STRUCT]


def made(cls, **fields):
    found = cls()
    found.__dict__.update(fields)
    return found


def row(io_struct, rid, prompt, output, begins, ends, cached=0, **more):
    request = made(io_struct.GenerateReqInput, rid=rid, input_ids=prompt, **more)
    meta = {
        "id": rid,
        "finish_reason": {"type": "stop", "matched": 1},
        "prompt_tokens": len(prompt),
        "completion_tokens": len(output),
        "cached_tokens": cached,
    }
    return (request, {"text": "x", "output_ids": list(output), "meta_info": meta}, begins, ends)


def dump(path, rows, protocol=4, **more):
    path.write_bytes(pickle.dumps({"server_args": None, "requests": rows, **more}, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", [list, tuple, lambda ids: array("q", ids)])
def test_a_dump_is_read_whatever_its_protocol(io_struct, tmp_path, protocol, kind):
    prompt = list(range(30))
    rows = [
        row(io_struct, "a", prompt, [1, 2], 1000.0, 1001.0),
        row(io_struct, "b", [*prompt, 1, 2, 50], [3], 1003.0, 1004.5, cached=31),
    ]
    for each in rows:
        each[0].input_ids = kind(each[0].input_ids)
    path = dump(tmp_path / "d.pkl", rows, protocol, extra=made(io_struct.ServerArgs, tp_size=1))
    report = import_files([path], references="none")
    [task] = report.tasks
    assert task.steps == 2
    assert task.turns[0].calls[0].latency_s == 2.0
    assert task.carries.timing == task.carries.usage == "recorded"
    assert report.warnings["prompt tokens recorded that the server found cached"] == 31
    assert "read without executing" in report.evidence[0].text


def test_what_a_dump_cannot_say_is_counted(io_struct, tmp_path):
    good = row(io_struct, "a", list(range(30)), [1], 1000.0, 1001.0)
    text = row(io_struct, "b", [], [1], 1000.0, 1001.0)
    text[0].input_ids, text[0].text = None, "hello"
    silent = row(io_struct, "c", [1], [1], 1000.0, 1001.0)
    del silent[1]["output_ids"]
    turn = row(io_struct, "d", [1], [1], 1000.0, 1001.0, session_params={"id": "s"})
    embedding = (made(io_struct.EmbeddingReqInput, rid="e"), {}, 1000.0, 1001.0)
    report = import_files(
        [dump(tmp_path / "d.pkl", [good, good, text, silent, turn, embedding])], references="none"
    )
    assert len(report.tasks) == 1
    left = {note: times for note, times in report.warnings.items() if "left out" in note}
    assert len(left) == 5
    assert set(left.values()) == {1}


# Malicious pickles: each would run a command, or more, if it were loaded.

MARKER = "executed"


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def attacks(marker):
    touch = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w').close()"
    nested = Calls(getattr, Calls(__import__, "os"), "system")
    return {
        "posix.system": Calls(os.system, touch),
        "builtins.eval": Calls(eval, python),
        "builtins.exec": Calls(builtins.exec, python),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(marker)]),
        "builtins.getattr": nested,
        "builtins.__import__": Calls(__import__, "antigravity"),
        "copyreg.add_extension": Calls(copyreg.add_extension, "os", "system", 1),
        "functools.partial": Calls(__import__("functools").partial, os.system, touch),
        "operator.attrgetter": Calls(__import__("operator").attrgetter("system").__class__, "system"),
        "pickle.loads": Calls(pickle.loads, pickle.dumps(Calls(os.system, touch))),
        "importlib.import_module": Calls(__import__("importlib").import_module, "antigravity"),
    }


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", sorted(attacks("x")))
def test_a_malicious_pickle_is_refused_by_name_and_not_executed(tmp_path, name, protocol):
    marker = tmp_path / MARKER
    for place in ("whole", "inside"):
        attack = attacks(marker)[name]
        value = attack if place == "whole" else {"requests": [({"deep": [attack]}, {}, 1.0, 2.0)]}
        path = tmp_path / f"{place}.pkl"
        path.write_bytes(pickle.dumps(value, protocol))
        with pytest.raises(TraceError) as error:
            import_files([path])
        # Protocols below 3 write Python 2's names of modules and functions, as `__builtin__.eval`.
        short = name.rpartition(".")[2]
        assert any(
            f"{short}," in str(error.value) or word in str(error.value) for word in ("getattr", "system")
        )
        assert "nothing of it was executed" in str(error.value)
        assert "dump_requests_folder" in str(error.value)
        assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04cos\nsystem\n(S'touch executed'\ntR.",  # GLOBAL and REDUCE, by hand
        b"(S'touch executed'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch executed'\no.",  # OBJ
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0etouch executed\x85R.",  # STACK_GLOBAL
        b"\x80\x04\x8c\x02os\x8c\x0bsystem.name\x93.",  # a dotted name
        b"\x80\x02\x82\x01.",  # an extension's number
        b"Pname\n.",  # a persistent id
        b"\x80\x04\x8c\x0asglang.srt\x8c\x01x\x93.",  # no class of its
    ],
)
def test_every_way_to_name_something_is_closed(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.pkl").write_bytes(data)
    with pytest.raises(TraceError):
        import_files(["d.pkl"])
    assert [path.name for path in tmp_path.iterdir()] == ["d.pkl"]


def test_an_allowed_name_is_inert_too(io_struct, tmp_path):
    """A class of SGLang may have any constructor: it is not called."""
    called = []
    io_struct.ServerArgs.__init__ = lambda self, *args: called.append(args)
    io_struct.ServerArgs.__setstate__ = lambda self, state: called.append(state)
    io_struct.ServerArgs.__reduce__ = lambda self: (io_struct.ServerArgs, (7,), {"a": 1})
    good = row(io_struct, "a", list(range(30)), [1], 1000.0, 1001.0)
    path = dump(tmp_path / "d.pkl", [good], extra=io_struct.ServerArgs.__new__(io_struct.ServerArgs))
    assert len(import_files([path]).tasks) == 1
    assert called == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04",
        b"\x80\x09.",
        b"\x80\x04N.",
        b"\x80\x04}.",
        b"\x80\x04]r\xff\xff\xff\x7f.",  # a memo place of 2^31: a table of 16 GB in the C unpickler
        b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",  # a bytearray of 2^62 bytes
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",  # a frame of them
        b"\x80\x04" + b"(" * 10_000,
        pickle.dumps({"requests": None}),
        pickle.dumps({"requests": [1]}),
        pickle.dumps({"requests": [(1, 2, 3, 4)]}),
        pickle.dumps({"requests": []}),
    ],
)
def test_damage_is_named(tmp_path, data):
    path = tmp_path / "d.pkl"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"d\.pkl"):
        import_files([path])


def test_a_dump_is_known_by_its_first_byte_too(tmp_path):
    path = tmp_path / "dump.bin"
    path.write_bytes(pickle.dumps(Calls(os.system, f"touch {tmp_path / MARKER}")))
    with pytest.raises(TraceError, match="nothing of it was executed"):
        import_files([path])
    assert not (tmp_path / MARKER).exists()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_byte_never_leads_elsewhere(io_struct, tmp_path, data):
    """Either the file is read or a TraceError names it."""
    rows = [row(io_struct, "a", list(range(9)), [1], 1.0, 2.0)]
    raw = bytearray(pickle.dumps({"requests": rows}, data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "d.pkl"
    path.write_bytes(raw)
    try:
        import_files([path])
    except TraceError as error:
        assert "d.pkl" in str(error)  # noqa: PT017 - a refusal is one of two right ends
