# SPDX-License-Identifier: Apache-2.0
"""The house (LAWS.md, "The house"): no arrow runs up, pure rooms stay pure, and only three rooms read the future (law 4)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sqsim"
ROOMS = [  # from the ground up; a room imports only from rooms before it
    "errors",
    "base",
    "trace",
    "models/cost",
    "models/serving",
    "policies",
    "agent",
    "record",
    "scenario",
    "simulation",
    "fidelity",
    "comparison",
    "experiments",
    "report",
    "cli",
]
PURE = ("agent", "models", "policies", "trace/schema.py", "trace/references.py")
READERS = {"policies/decisions.py", "policies/oracle.py", "record/hindsight.py"}


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(module: str) -> str | None:
    """The room of a module of ours; None for the front door and for what is not ours."""
    parts = module.split(".")
    if parts[0] != "sqsim" or len(parts) == 1 or (not (ROOT / parts[1]).is_dir() and parts[1] != "errors"):
        return None
    return "/".join(parts[1:3]) if parts[1] == "models" and len(parts) > 2 else parts[1]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_arrow_runs_up(path):
    own = room(module_of(path))
    for module in imports(path):
        other = room(module)
        if own in ROOMS and other is not None:
            assert ROOMS.index(other) <= ROOMS.index(own), f"{path.name} imports {module}"


def test_every_file_is_in_a_room():
    lost = {room(module_of(path)) for path in files()} - {*ROOMS, None, "models/__init__"}
    assert not lost
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "errors.py"}


def test_sqreal_needs_no_simulation():
    """The real side takes scenario, records and agents from sqsim; only its commands make pages (docs/architecture.md)."""
    for path in sorted((ROOT.parent / "sqreal").rglob("*.py")):
        rooms = {room(module) for module in imports(path)}
        assert "simulation" not in rooms, path
        assert "report" not in rooms or path.parent.name == "cli", path


def test_simpy_lives_in_simulation():
    users = {str(p.relative_to(ROOT)) for p in files() if any(m.split(".")[0] == "simpy" for m in imports(p))}
    assert users
    assert all(user.startswith("simulation/") for user in users), users


def test_only_three_rooms_read_references():
    users = {
        str(p.relative_to(ROOT))
        for p in files()
        if any(m.startswith("sqsim.trace.references") for m in imports(p))
        and not str(p.relative_to(ROOT)).startswith("trace/")
    }
    assert users == READERS
    for path in files():
        name = str(path.relative_to(ROOT))
        if name not in READERS and not name.startswith("trace/"):
            attributes = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
            assert "uses" not in attributes, f"{name} reads the future"


def test_sqsim_imports_without_torch_triton_sglang():
    script = (
        "import sys\n"
        "for name in ('torch', 'triton', 'sglang', 'sqreal', 'sqkernels'): sys.modules[name] = None\n"
        "import sqsim.cli.app\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT.parent)


def test_no_file_is_long():
    long = {str(p.relative_to(ROOT)): n for p in files() if (n := len(p.read_text().splitlines())) > 500}
    assert not long
