# SPDX-License-Identifier: Apache-2.0
"""Run the same command lines in two trees of this repository, side by side.

A tree is a process of its own that imports `sqsim` from there and calls the function that its pyproject.toml names as the
command `sqsim`. The two work in folders that look the same to them, so whatever they write and say can be compared.
"""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

CRASHED = 70
"""The exit code that stands for an exception which no command handled."""


# One tree: a process that takes command lines.


class Ran(NamedTuple):
    """Result of a command line, and its processor time."""

    code: int
    stdout: str
    stderr: str
    cpu_s: float


class Tree:
    """A process in its own folder that runs `sqsim` command lines of one tree, one after another."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.folder = tree, folder
        folder.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(tree)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{tree}:{tree / 'kernels'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, arguments: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Ran:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.tree}: its process ended with code {self._process.wait()}; see above")
        return Ran(*json.loads(line))

    def run(self, arguments: list[str]) -> Ran:
        self.send(arguments)
        return self.receive()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def work(tree: Path) -> None:
    """Run command lines from stdin, one JSON list a line, until it ends."""
    command = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["scripts"]["sqsim"]
    module, _, function = command.partition(":")
    main: Callable[[], object] = getattr(import_module(module), function)
    found = Path(str(import_module("sqsim").__file__)).resolve()
    if not found.is_relative_to(tree.resolve()):
        raise SystemExit(f"{tree}: imports {found}, which is not of this tree")
    gc.freeze()  # what the imports left is not looked through again before each command line
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            answers.write(json.dumps(_call(main, json.loads(line))) + "\n")
            answers.flush()


def _call(main: Callable[[], object], arguments: list[str]) -> Ran:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    sys.argv, kept, code = ["sqsim", *arguments], (sys.stdout, sys.stderr), 0
    sys.stdout, sys.stderr = streams
    gc.collect()
    started = time.process_time()
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception:  # noqa: BLE001 - a crash is a result to report
        code = CRASHED
        traceback.print_exc()
    finally:
        cpu_s = time.process_time() - started
        sys.stdout, sys.stderr = kept
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return Ran(code, out, err, cpu_s)


# Two trees side by side.


class Pair(NamedTuple):
    """Both trees, in folders that look the same to them."""

    old: Tree
    new: Tree
    together: bool

    def run(self, arguments: list[str]) -> tuple[Ran, Ran]:
        if not self.together:
            return self.old.run(arguments), self.new.run(arguments)
        self.old.send(arguments)
        self.new.send(arguments)
        return self.old.receive(), self.new.receive()

    def write(self, name: str, content: object) -> None:
        for tree in (self.old, self.new):
            (tree.folder / name).write_text(json.dumps(content, indent=1))


@contextmanager
def pairs(old: Path, new: Path, jobs: int) -> Iterator[list[Pair]]:
    """Start as many pairs as `jobs` processes allow; with one job the two trees of one pair take turns."""
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        found: list[Pair] = []
        (folder / "traces").mkdir()
        for number in range(max(1, jobs // 2)):
            pair = Pair(
                Tree(old, folder / str(number) / "old"),
                Tree(new, folder / str(number) / "new"),
                together=jobs > 1,
            )
            for tree in (pair.old, pair.new):
                stack.callback(tree.close)
                (tree.folder / "traces").symlink_to(folder / "traces")
                (tree.folder / "recordings").symlink_to(old / "traces")
            found.append(pair)
        yield found


if __name__ == "__main__":
    work(Path(sys.argv[1]))
