# SPDX-License-Identifier: Apache-2.0
"""`sqreal` as a process of its own, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FAKE = (sys.executable, str(Path(__file__).with_name("fake_launcher.py")))
ROOT = Path(__file__).parents[2]
_PLAIN = "from sqreal.cli.main import main; main()"
_WITH_FAKE = f"import functools, sqreal.server.server as s; s.start = functools.partial(s.start, launcher={FAKE!r}); {_PLAIN}"


@contextmanager
def sqreal(
    *words: str, work: Path, fake: str | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Start the command; what it makes for itself lies in `work`. `fake`: the mode of a launcher in SGLang's place."""
    work.mkdir(exist_ok=True)
    code = _PLAIN if fake is None else _WITH_FAKE
    says = "sqreal plugin: forced tokens on (SGLang 0.5.23)"
    environment = {"TMPDIR": str(work), "FAKE_MODE": fake or "", "FAKE_SAYS": says, **environment}
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # where a test failed; else it has ended


def servers_in(work: Path) -> list[int]:
    """The processes that run in a directory below `work`, as the servers of a command there do."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            inside = (path / "cwd").readlink().is_relative_to(work)
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if inside and state not in {"Z", "X"}:
            found.append(int(path.name))
    return sorted(found)


def eventually(true: Callable[[], object], limit_s: float = 60.0) -> None:
    """Poll until `true()`; an assertion where it never is."""
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def command_of(pid: int) -> list[str]:
    """The words of a process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
