# SPDX-License-Identifier: Apache-2.0
"""Installed policy packages: a module and the metadata of its entry point, in a folder for PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

POLICY = """from typing import Literal
from sqsim.policies import *
from sqsim.policies.base import Choice
class P(Policy):
    name: Literal["{name}"] = "{name}"
    after_eviction: AfterEviction = "reprefill"
"""


def install(site: Path, name: str, code: str) -> Path:
    """Install a package that brings policy `name` as class P of its module."""
    info = site / f"{name}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[sqsim.policies]\n{name} = package_{name}:P\n")
    (site / f"package_{name}.py").write_text(code)
    return site


def run_with(site: Path, code: str, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code, with arguments, where the packages of a site are installed."""
    path = os.pathsep.join([str(site), str(ROOT), str(ROOT / "kernels")])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
