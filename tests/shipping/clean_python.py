# SPDX-License-Identifier: Apache-2.0
"""A Python with a wheel and what its extras ask for, and nothing else: not this checkout, not what else is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
_NOT_SOURCE = (".*", "__pycache__", "*.egg-info", "build", "dist", "out")


@dataclass(frozen=True)
class CleanPython:
    """`directory` is a virtual environment's."""

    directory: Path

    def __call__(self, command: str, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of its commands (python, sqsim, sqreal) in `cwd`, with no variable that leads elsewhere."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SQREAL_"))}
        return subprocess.run(
            [self.directory / "bin" / command, *map(str, words)],
            check=False,
            cwd=cwd,
            env=kept,
            capture_output=True,
            text=True,
        )

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.directory)}))


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this tree without a network, from a copy: a build leaves files beside what it builds."""
    copy = directory / "source"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_NOT_SOURCE))
    _pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", directory, copy)
    (wheel,) = directory.glob("*.whl")
    return wheel


def clean_python(directory: Path, wheel: Path, *extras: str) -> CleanPython:
    """Install the wheel; what it needs is linked from the environment that the tests run in.

    metadata.PackageNotFoundError: something that an extra needs is not there.
    """
    venv.create(directory, with_pip=False)
    python = CleanPython(directory)
    _pip("--python", directory, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    (ours,) = metadata.distributions(path=[str(python.site)])
    for each in _needed(ours, extras):
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (
                python.site / top
            ).exists():  # several may share a namespace: the first one's is enough here
                (python.site / top).symlink_to(Path(str(each.locate_file(top))))
    return python


def _needed(ours: metadata.Distribution, extras: Iterable[str]) -> Iterator[metadata.Distribution]:
    """Everything that a distribution asks for with these extras, and what that asks for, and so on."""
    todo, seen = [(ours, frozenset(extras))], set()
    while todo:
        found, wanted = todo.pop()
        if (key := (found.name, wanted)) in seen:
            continue
        seen.add(key)
        if found is not ours:
            yield found
        for text in found.requires or ():
            asked = Requirement(text)
            if asked.marker is None or any(asked.marker.evaluate({"extra": each}) for each in (*wanted, "")):
                other = ours if asked.name == ours.name else metadata.distribution(asked.name)
                todo.append((other, frozenset(asked.extras)))


def _pip(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
