# SPDX-License-Identifier: Apache-2.0
"""How the plugin touches SGLang, on a small honest stand-in: what differs is named, and nothing is wrapped then."""

import re
import subprocess
import sys
import types

import pytest

import sqreal.plugin
from sqreal.plugin import Asked, asked
from sqreal.plugin.hooks import Hook, Need, PluginError, check_version, faults, install


@pytest.fixture
def engine(monkeypatch):
    """A module `engine` with classes as SGLang has them."""
    module = types.ModuleType("engine")

    class Base:
        def inherited(self, x):
            return x

    class Engine(Base):
        limit: int

        def __init__(self):
            self.count = 0

        def add(self, x, y=1, *, twice=False):
            self.count += 1
            return (x + y) * (2 if twice else 1)

        @classmethod
        def made(cls, x):
            return cls, x

        @property
        def state(self):
            return self._state

    module.Engine = Engine
    monkeypatch.setitem(sys.modules, "engine", module)
    return module


def same(original, *args, **kwargs):
    return original(*args, **kwargs)


ADD = Hook("engine.Engine.add", "self x y * twice", lambda original, *a, **k: -original(*a, **k))


def test_a_hook_stands_around_the_method(engine):
    install([ADD], [Need("engine.Engine", "count limit add state _state inherited")])
    assert engine.Engine().add(1, twice=True) == -4
    assert engine.Engine.add.__name__ == "add"


def test_a_class_method_stays_one(engine):
    install([Hook("engine.Engine.made", "cls x", lambda original, cls, x: (original(cls, x), "seen"))], [])
    assert engine.Engine.made(3) == ((engine.Engine, 3), "seen")


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (Hook("engine.Engine.add", "self x y twice", same), "takes (self x y * twice), not (self x y twice)"),
        (Hook("engine.Engine.add", "self x", same), "takes (self x y * twice), not (self x)"),
        (Hook("engine.Engine.gone", "self", same), "engine.Engine.gone: not found"),
        (Hook("engine.Gone.add", "self", same), "engine.Gone.add: not found"),
        (Hook("nothing.Engine.add", "self", same), "nothing.Engine.add: not found"),
        (Hook("engine.Engine.inherited", "self x", same), "engine.Engine.inherited: now inherited"),
    ],
)
def test_a_method_that_changed_is_named_and_nothing_is_wrapped(engine, hook, said):
    with pytest.raises(PluginError, match="differ from the tested ones") as error:
        install([ADD, hook], [])
    assert said in str(error.value)
    assert engine.Engine().add(1) == 2


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (Need("engine.Engine", "count amount"), "engine.Engine: has no amount"),
        (Need("engine.Gone", "count"), "engine.Gone: not found"),
    ],
)
def test_a_name_that_is_gone_is_said(engine, need, said):
    assert len(found := faults([], [need])) == 1
    assert said in found[0]


def test_only_tested_versions_are_loaded():
    for tested in ("0.5.16", "0.5.23"):
        check_version(tested)
    for other in ("0.5.22", "0.6.0"):
        said = (
            rf"tested with SGLang 0\.5\.16 or 0\.5\.23, found {re.escape(other)}; pip install sglang==0\.5\.23"
        )
        with pytest.raises(PluginError, match=said):
            check_version(other)


@pytest.mark.parametrize(
    ("environment", "what", "words"),
    [
        ({}, Asked(False, False, None, False, False), ""),
        ({"SQREAL_FORCE_TOKENS": "0", "SQREAL_STEP_LOG": ""}, Asked(False, False, None, False, False), ""),
        ({"SQREAL_IN_PLACE": "1"}, Asked(True, False, None, False, False), "sessions in place"),
        ({"SQREAL_FORCE_TOKENS": "1"}, Asked(False, True, None, False, False), "forced tokens on"),
    ],
)
def test_the_environment_asks(environment, what, words):
    assert asked(environment) == what
    assert what.nothing == (not words)
    assert what.describe() == words


def test_all_that_can_be_asked(tmp_path):
    log = tmp_path / "steps.jsonl"
    what = asked({"SQREAL_FORCE_TOKENS": "1", "SQREAL_STEP_LOG": str(log), "SQREAL_CPU_ATTENTION": "1"})
    assert what == Asked(False, True, log, True, False)
    assert what.describe() == f"forced tokens on, step log {log}, CPU attention on"


def test_an_odd_value_is_refused():
    with pytest.raises(PluginError, match="SQREAL_FORCE_TOKENS is 'yes'; use 1"):
        asked({"SQREAL_FORCE_TOKENS": "yes"})


def test_nothing_asked_touches_nothing():
    """A server that did not ask gets nothing: neither SGLang nor torch nor anything of ours is even loaded."""
    code = (
        "import sys, sqreal.plugin as p; p.register(); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('sglang', 'torch', 'sqsim', 'numpy', 'httpx')"
        " or m.startswith('sqreal.')))"
    )
    clean = {"PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sqreal.plugin', 'sqreal.plugin.hooks', 'sqreal.plugin.versions']"


@pytest.mark.parametrize(
    "environment",
    [
        {"SQREAL_RECORD_MB": "0"},
        {"SQREAL_RECORD_MB": "much"},
        {"SQREAL_FORCE_TOKENS": "maybe"},
        {"SQREAL_STEP_LOG": "/nowhere/x.jsonl"},
    ],
)
def test_a_failure_ends_the_process(monkeypatch, environment):
    """SGLang swallows every Exception of a plugin; a SystemExit it does not."""

    def fail(version):
        raise PluginError(f"not with {version}")

    monkeypatch.setattr(sqreal.plugin, "version", lambda name: "9.9")
    monkeypatch.setattr(sqreal.plugin, "check_version", fail)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="sqreal plugin: "):
        sqreal.plugin.register()
