"""The house (LAWS.md, "The house"): no arrow runs up, pure rooms stay pure, and only three rooms read the future (law 4)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "sqsim"
FLOORS = [  # from the ground up; a module may import from its own floor and from those below
    {"errors"},
    {"base", "strict_yaml"},
    {"draws", "workers", "directories", "strict_json"},
    {"trace"},
    {"models", "policies"},
    {"agent"},
    {"record", "record_files", "recorder", "metrics", "evidence"},
    {"lockstep", "recording", "step_times", "step_fit", "task_rows", "time_spent"},
    {"scenario", "scenario_parts", "scenario_keys"},
    {"workload", "resolved"},
    {"agents"},
    {"des"},
    {"simulate", "labels", "grid"},
    {"bands"},
    {"points"},
    {"report", "study", "study_file", "compare", "calibrate", "support", "sweep", "plan", "scenario_schema"},
    {
        "cli",
        "cli_compare",
        "cli_output",
        "cli_plan",
        "cli_region",
        "cli_run",
        "cli_schema",
        "cli_sweep",
        "cli_trace",
    },
]
PURE = ("agent", "models", "trace/schema.py", "trace/references.py")
READERS = {"policies/decisions.py", "policies/oracle.py", "metrics.py"}


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
    parts = module.split(".")
    return parts[1] if parts[0] == "sqsim" and len(parts) > 1 and parts[1] != "__version__" else None


def floor(name: str) -> int:
    return next(level for level, names in enumerate(FLOORS) if name in names)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_arrow_runs_up(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for module in imports(path):
        other = room(module)
        if other is not None:
            assert floor(other) <= floor(own), f"{path.name} imports {module}"


def test_simpy_lives_in_des_and_its_starter():
    users = {str(p.relative_to(ROOT)) for p in files() if any(m.split(".")[0] == "simpy" for m in imports(p))}
    assert all(user.startswith("des/") or user == "simulate.py" for user in users), users


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
        "import sqsim.cli\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT.parent)


def test_no_file_is_long():
    long = {str(p.relative_to(ROOT)): n for p in files() if (n := len(p.read_text().splitlines())) > 500}
    assert not long
