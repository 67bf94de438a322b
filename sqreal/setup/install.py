# SPDX-License-Identifier: Apache-2.0
"""Installed parts of the real side, found without importing torch or sglang."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sqreal.errors import DeviceError, InstallError
from sqreal.plugin.versions import TESTED_VERSIONS
from sqsim import __version__

_CPU = Path(__file__).parents[1] / "cpu"

CPU_SHIMS = _CPU / "shims"
"""Directory that only a server on a CPU needs on its PYTHONPATH."""

CLIENT = "pip install 'sqsim[client]'"
"""Command that installs the HTTP client for any server. (pip keeps the installed sqsim.)"""

PYTHON = "SQREAL_PYTHON"
"""Environment variable: the Python that starts servers, where SGLang is in an environment of its own."""


def server_python() -> str:
    """Return the Python that starts servers: $SQREAL_PYTHON, else this one."""
    return os.environ.get(PYTHON) or sys.executable


def installed(distribution: str, python: str | None = None) -> str | None:
    """Return the installed version of a distribution for a Python (default: this one); None: not installed."""
    found = metadata.distributions(name=distribution, path=_path_of(python or sys.executable))
    return next((each.version for each in found), None)


def _path_of(python: str) -> list[str]:
    """Return the search path of a Python; an InstallError where it does not run."""
    return sys.path if python == sys.executable else _path_of_another(python)


@cache
def _path_of_another(python: str) -> list[str]:
    code = "import json, sys; print(json.dumps(sys.path))"
    try:
        done = subprocess.run(  # noqa: S603 - the user named it
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        return [str(each) for each in json.loads(done.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InstallError(
            f"{PYTHON}={python}: does not run ({error}); name the python of the environment with SGLang"
        ) from error


class PluginFault(NamedTuple):
    """Reason why SGLang would not find the plugin, and its fix."""

    problem: str
    fix: str


def plugin_fault(directory: Path | None = None) -> PluginFault | None:
    """Find out why a server would not find the plugin; None where it would.

    SGLang uses importlib.metadata, where the first distribution of a name on the path hides all others: an old
    `sqsim.egg-info` in a checkout is enough. Our servers have PYTHONPATH first; one that is started by hand as
    `python -m sglang.launch_server` has its `directory` before that.
    """
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(directory)] if directory is not None else []
    python = server_python()
    path += [each for each in (*before, *_path_of(python)) if each]
    for found in metadata.distributions(name="sqsim", path=path):
        if any(each.group == "sglang.srt.plugins" and each.name == "sqreal" for each in found.entry_points):
            return None
        place = Path(str(found.locate_file(""))).resolve()
        return PluginFault(
            f"an older sqsim without the plugin in {place} (sqsim*.egg-info or .dist-info there) hides it from SGLang",
            "remove that directory's sqsim*.egg-info, or install sqsim from there again",
        )
    unknown = "SGLang does not know the plugin: sqsim is not installed"
    if python == sys.executable:
        return PluginFault(f"{unknown}, only on the path", f"pip install {_itself()}")
    return PluginFault(f"{unknown} for {python}", f"{python} -m pip install --no-deps {_itself()}")


def _itself() -> str:
    """Name this sqsim for pip: its checkout, else the release."""
    return shlex.quote(str(Path(__file__).parents[2])) if in_checkout() else f"sqsim=={__version__}"


def fix() -> str:
    """Return the command that installs the real side on this machine: make's in a checkout, else pip's."""
    gpus = cuda_devices()
    if in_checkout():
        return "make real-gpu" if gpus else "make real-cpu"
    return "pip install 'sqsim[real]'" if gpus else _cpu_by_pip()


def in_checkout() -> bool:
    """Whether this package lies in a checkout, whose Makefile installs the rest."""
    root = Path(__file__).parents[2]
    return (root / "Makefile").is_file() and (root / "pyproject.toml").is_file()


def _cpu_by_pip() -> str:
    """Return the commands of the Makefile's target. No extra can state them: SGLang's own metadata requires CUDA."""
    versions, no_deps = (shlex.quote(str(_CPU / f"requirements{end}.txt")) for end in ("", "-nodeps"))
    return f"pip install -r {versions} && pip install --no-deps -r {no_deps}"


def require_client() -> None:
    """Raise an InstallError where the HTTP client is not installed."""
    if find_spec("httpx") is None:
        raise InstallError(f"httpx, the HTTP client that sqreal needs, is not installed; run: {CLIENT}")


def require_sglang() -> str:
    """Return the installed SGLang's version; an InstallError where there is none, or an untested one."""
    python = server_python()
    where = "" if python == sys.executable else f" for {python}"
    version = installed("sglang", python)
    if version is None:
        raise InstallError(
            f"sglang is not installed{where}; run: {fix()}, or set {PYTHON} to the python that has it"
        )
    if version not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise InstallError(f"sglang {version} is installed{where}, but only {tested} is tested; run: {fix()}")
    return version


def require_device(device: str) -> None:
    """Raise an error where this machine cannot serve on `device` (cpu or cuda)."""
    if device == "cuda" and not cuda_devices():
        problem = "no CUDA device is found on this machine"
        raise DeviceError(f"{problem}; set engine.gpu: cpu, or run on a GPU machine")
    if device == "cpu" and not CPU_SHIMS.is_dir():
        raise InstallError(f"{CPU_SHIMS}: missing: this installation of sqsim is incomplete; install it again")


def cuda_devices() -> list[str]:
    """List the names of the CUDA devices, from the driver itself; empty where there is no driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count, name = ctypes.c_int(), ctypes.create_string_buffer(128)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return []
    names = []
    for index in range(count.value):
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
            cuda.cuDeviceGetName(name, len(name), device)
            names.append(name.value.decode(errors="replace"))
    return names
