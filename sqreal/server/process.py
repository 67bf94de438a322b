# SPDX-License-Identifier: Apache-2.0
"""Child process with its descendants as one process group, all of which ends when we end.

The group is ours alone (`start_new_session`), so stopping it can hit no other process. Its leader is a small watcher:
it starts the command, ends with the command's code or signal, and kills the whole group once we have ended, even by `kill -9`. The
kernel's own death signal to the child is not enough: SGLang's processes request one seconds after they start,
and one whose parent has died before that lives on for ever. Linux only, as SGLang is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_POLL_S = 0.05
_VANISH_S = 10.0  # for killed processes to disappear
# We hold the other end of its standard input, so its read ends when we end. Signals that ask the group to end are for
# the command; the watcher handles them (ignoring them would be inherited by the command) and waits.
_WATCH = """
import os, signal, subprocess, sys, threading
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
def watch():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
code = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL).wait()
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class ChildGroup:
    """Started command. It writes its output to one log file and runs in that file's directory. Call `stop` in a `finally`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        with log_path.open("wb") as log:
            self._leader = subprocess.Popen(  # noqa: S603 - the command is built by us, no shell reads it
                [sys.executable, "-I", "-S", "-c", _WATCH, *command],
                env=dict(environment),
                cwd=log_path.parent,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._leader.pid
        self.log_path = log_path

    @property
    def ended(self) -> bool:
        """Whether the leader has ended. It is not reaped here, so that its id is not reused before `stop`."""
        if self._leader.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def ending(self) -> str:
        """Describe how the leader ended; call it after the end."""
        if self._leader.returncode is not None:
            code = self._leader.returncode
        else:
            state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is None:
                return "still runs"
            code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def log_tail(self, lines: int = 12) -> tuple[str, ...]:
        """Return the last non-empty lines of the log."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask the whole group to end, kill the rest after `grace_s` seconds, and return when no process is left."""
        if self._leader.returncode is not None:
            return
        if not self.ended:
            self._signal(signal.SIGTERM)
            self._wait(grace_s)
        self._signal(signal.SIGKILL)
        self._leader.wait()
        assert self._leader.stdin is not None, "the watcher's pipe"
        self._leader.stdin.close()
        until = time.monotonic() + _VANISH_S
        while group_members(self.pid) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        # The leader is not reaped yet, so no other group can have this id.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.ended and time.monotonic() < until:
            time.sleep(_POLL_S)


def group_members(group: int) -> list[int]:
    """List the ids of the living (not defunct) processes of a process group, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        state, _, its_group = fields[:3]
        if int(its_group) == group and state not in {"Z", "X"}:
            found.append(int(path.parent.name))
    return sorted(found)
