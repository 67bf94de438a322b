# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of the real side: installed parts, possible runs, and the command that installs the rest."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqreal.errors import InstallError
from sqreal.plugin.versions import TESTED_VERSIONS
from sqreal.setup.install import (
    CLIENT,
    CPU_SHIMS,
    PYTHON,
    cuda_devices,
    fix,
    installed,
    plugin_fault,
    server_python,
)
from sqreal.setup.tiny_models import TINY_MODELS

_IMPORT_S = 180
_MODULES = ("sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler", "sglang.srt.models.llama")


@dataclass(frozen=True, slots=True)
class Check:
    """Check of one part: the finding, and its fault (None: no fault)."""

    name: str
    found: str
    problem: str | None = None
    fix: str | None = None  # where it is not the installation of the real side


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of the machine. `fix` is a shell command, None where nothing is missing."""

    checks: tuple[Check, ...]
    possible: tuple[str, ...]
    fix: str | None

    @property
    def ok(self) -> bool:
        return self.fix is None

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def examine(*, imports: bool = True) -> Diagnosis:
    """Examine this machine. `imports`: also import SGLang in a process of its own (about 10 seconds)."""
    gpus = cuda_devices()
    try:
        servers = [_server_python(), _sglang(), _torch(gpus), _plugin()]
    except InstallError as error:
        servers = [Check("servers", server_python(), str(error), f"unset {PYTHON}")]
    checks = [_python(), _device(gpus), _client(), *servers]
    sound = all(check.problem is None for check in checks)
    if sound and imports:
        checks.append(_loads(gpus))
        sound = checks[-1].problem is None
    possible = []
    if all(check.problem is None for check in checks if check.name == "httpx"):
        possible.append("measure a running server: sqreal run SCENARIO --url URL")
    if sound:
        possible.append(
            f"serve {', '.join(TINY_MODELS)} on this CPU: engine.gpu: cpu, engine.kv_capacity: TOKENS"
        )
    if sound and gpus:
        possible.append("serve models by the path of their config.json on this GPU")
    if sound:
        return Diagnosis(tuple(checks), tuple(possible), None)
    wrong = [check for check in checks if check.problem is not None]
    others = [check.fix for check in wrong if check.fix is not None]
    return Diagnosis(tuple(checks), tuple(possible), others[0] if len(others) == len(wrong) else fix())


def _python() -> Check:
    return Check("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _device(gpus: list[str]) -> Check:
    return Check("device", ", ".join(gpus) if gpus else f"no CUDA device; {os.cpu_count()} CPU cores")


def _server_python() -> Check:
    python = server_python()
    return Check("servers", "this python" if python == sys.executable else f"{python} ({PYTHON})")


def _client() -> Check:
    version = installed("httpx")
    return Check("httpx", "-", "not installed", CLIENT) if version is None else Check("httpx", version)


def _distribution(name: str, python: str) -> Check:
    version = installed(name, python)
    if version is not None:
        return Check(name, version)
    # The command would install into this Python, not into the one examined.
    return Check(name, "-", "not installed", None if python == sys.executable else f"unset {PYTHON}")


def _sglang() -> Check:
    check = _distribution("sglang", server_python())
    if check.problem is None and check.found not in TESTED_VERSIONS:
        return Check("sglang", check.found, f"not tested; tested: {', '.join(TESTED_VERSIONS)}")
    return check


def _torch(gpus: list[str]) -> Check:
    check = _distribution("torch", server_python())
    if gpus and check.found.endswith("+cpu"):
        return Check("torch", check.found, "a CPU build on a machine with a GPU")
    return check


def _plugin() -> Check:
    """Check the plugin for our own servers, then for one that is started by hand in this directory."""
    for directory, where in ((None, ""), (Path.cwd(), f"in a server started by hand in {Path.cwd()}: ")):
        fault = plugin_fault(directory)
        if fault is not None:
            return Check("plugin", "-", where + fault.problem, fault.fix)
    return Check("plugin", "SGLang finds it")


def _loads(gpus: list[str]) -> Check:
    """Import a server's modules as a server does, with the shims where there is no GPU."""
    environment = dict(os.environ)
    if not gpus:
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(CPU_SHIMS)}
    command = [server_python(), "-W", "ignore", "-c", f"import {', '.join(_MODULES)}"]
    try:
        result = subprocess.run(  # noqa: S603 - our own interpreter, or the one that the user named
            command, env=environment, capture_output=True, text=True, timeout=_IMPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("import", "-", f"SGLang did not load within {_IMPORT_S} s")
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        return Check("import", "-", f"SGLang does not load: {lines[-1] if lines else result.returncode}")
    return Check("import", "SGLang loads")
