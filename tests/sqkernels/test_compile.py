# SPDX-License-Identifier: Apache-2.0
"""`python -m sqkernels.compile` tells good machine code from bad, and leaves no kernel out. It runs in a process of its own,
as it wants no interpreter; all variants are compiled by `make compile-kernels`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, interpret=False):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "kernels"), str(ROOT)])
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, *command]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_bad_kernel_is_named_and_the_good_one_is_not():
    done = run("-m", "sqkernels.compile", "--variants", "tests.sqkernels.bad_variants")
    assert done.returncode == 1, done.stderr
    faults = done.stderr.splitlines()
    for expected in (
        "_spilled (spills): spills ",
        "_narrow (narrow): has stores narrower than 128 bits: STG.E.64",
        "_racing (races): has a store (STG.E.128) behind a load with no barrier between them",
        "_small_tile (small): has no wgmma (HGMMA)",
        "_refused (refused): _refused: Triton ",
    ):
        assert sum(fault.startswith(expected) for fault in faults) == 1, (expected, done.stderr)
    assert "_fine" not in done.stderr
    (fine,) = [line for line in done.stdout.splitlines() if line.startswith("_fine")]
    assert fine.endswith("no spills, 128 bit")
    assert done.stdout.splitlines()[-1].endswith(", 5 faults")


def test_no_kernel_is_left_out():
    """A kernel says what its grid is; functions that kernels call do not."""
    launched = {
        node.name
        for path in (ROOT / "kernels/sqkernels").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id == "kernel" for each in node.decorator_list)
        and (ast.get_docstring(node) or "").startswith("Grid (")
    }
    script = (
        "from sqkernels.compile.variants import variants\nfor v in variants(): print(v.launch.kernel.__name__)"
    )
    done = run("-c", script)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == launched
    assert len(launched) > 8


def test_every_kernel_says_its_floor_and_its_source():
    """Public functions are those with a plain torch reference beside them."""
    functions = {
        node.name: ast.get_docstring(node) or ""
        for path in (ROOT / "kernels/sqkernels").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    public = {name: text for name, text in functions.items() if f"{name}_reference" in functions}
    assert len(public) == 12
    assert [name for name, text in public.items() if "Floor: " not in text or "Source: " not in text] == []


@pytest.mark.parametrize(
    ("arguments", "interpret", "message"),
    [
        ([], True, "TRITON_INTERPRET is set, under which nothing is compiled; unset it"),
        (["--only", "nothing"], False, "--only nothing: in no variant's name; the kernels are _compact, "),
        (["--jobs", "0"], False, "--jobs 0: give 1 or more"),
        (
            ["--variants", "tests.sqkernels.paged"],
            False,
            "has no attribute 'variants'; give a module with a function",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, interpret, message):
    done = run("-m", "sqkernels.compile", *arguments, interpret=interpret)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
