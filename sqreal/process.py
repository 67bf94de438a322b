"""A child process with all that it starts: one process group, which nothing of ours outlives.

The group is ours alone (`start_new_session`), so stopping it can hit no other process. The kernel kills the
leader when the thread that started it ends, even by `kill -9` (so start it from a thread that lasts); SGLang's own
children then end with it. Linux only, as SGLang is.
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
# prctl(PR_SET_PDEATHSIG, SIGKILL), unless the parent has died already; then become the command. The child's own
# interpreter does it: a function that runs between fork and exec (preexec_fn) is not safe beside threads.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


class ChildGroup:
    """A started command; its output goes to one log file, whose directory it runs in. Call `stop` in a `finally`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log_path: Path) -> None:
        with log_path.open("wb") as log:
            self._leader = subprocess.Popen(  # noqa: S603 - the command is built by us, no shell reads it
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
                env=dict(environment),
                cwd=log_path.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._leader.pid
        self.log_path = log_path

    @property
    def ended(self) -> bool:
        """Whether the leader has ended. It is not reaped here, so that its id stays ours until `stop`."""
        if self._leader.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    @property
    def ending(self) -> str:
        """How the leader ended, in words; call it once it has."""
        if self._leader.returncode is not None:
            code = self._leader.returncode
        else:
            state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is None:
                return "still runs"
            code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def log_tail(self, lines: int = 12) -> tuple[str, ...]:
        """The last lines of the log that are not empty."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-lines:]

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask the whole group to end, kill what has not after `grace_s` seconds, and return when none is left."""
        if self._leader.returncode is not None:
            return
        if not self.ended:
            self._signal(signal.SIGTERM)
            self._wait(grace_s)
        self._signal(signal.SIGKILL)
        self._leader.wait()
        until = time.monotonic() + grace_s
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
    """Ids of the living (not defunct) processes of a process group, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        state, _, its_group = fields[:3]
        if int(its_group) == group and state not in {"Z", "X"}:
            found.append(int(path.parent.name))
    return sorted(found)
