# SPDX-License-Identifier: Apache-2.0
"""Run the tests on each edited source and report the edits that no test notices (`make mutants`).

Each edit is made alone, in a copy of the repository. Its related tests run first; if they pass, the tests of its whole
package that need no server run as well. Exit 1: an edit survived without a stated reason, or one with a reason failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.edits import ROOT, Edit, edits

QUICK = "not long and not gpu and not real and not kernels"
WIDER = ("tests/sqsim/models", "tests/sqsim/agent", "tests/sqsim/policies", "tests/sqsim/simulation", "tests/sqsim/fidelity",
         "tests/sqsim/record", "tests/sqsim/trace", "tests/sqsim/experiments")  # fmt: skip
LIMIT_S = 900
"""A run of tests that takes longer hangs because of the edit: that is noticed too."""


def main() -> None:
    """Parse the command line, run the edits, print a line for each, and exit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the edits whose name or file holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies of the repository")
    asked = parser.parse_args()
    chosen = [edit for edit in edits() if asked.only in edit.name or asked.only in edit.file]
    if not chosen:
        sys.exit(f"error: no edit holds {asked.only!r}")
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(max(1, min(asked.jobs, len(chosen)))):
            copies.put(_copy(Path(directory) / str(number)))
        if failure := _first_failure(Path(directory) / "0", WIDER):
            sys.exit(f"error: a test fails without any edit: {failure}")
        with ThreadPoolExecutor(copies.qsize()) as pool:
            for edit, noticed in zip(
                chosen, pool.map(lambda edit: _notices(edit, copies), chosen), strict=True
            ):
                expected = (noticed is None) == (edit.survives is not None)
                wrong += not expected
                said = noticed or f"SURVIVES ({edit.survives or 'no reason is stated'})"
                print(f"{'  ' if expected else '! '}{edit.name} [{edit.file}]: {said}", flush=True)  # noqa: T201 - its output
    print(f"{len(chosen)} edits, {wrong} not as stated")  # noqa: T201
    sys.exit(1 if wrong else 0)


def _copy(at: Path) -> Path:
    """Copy the files that git tracks, or would."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, at / name)
    return at


def _notices(edit: Edit, copies: SimpleQueue[Path]) -> str | None:
    """Return the first test that fails on the edited source; None: all pass."""
    at = copies.get()
    file = at / edit.file
    source = file.read_text(encoding="utf-8")
    file.write_text(edit.applied(source), encoding="utf-8")
    try:
        return _first_failure(at, edit.tests) or _first_failure(at, WIDER)
    finally:
        file.write_text(source, encoding="utf-8")
        copies.put(at)


def _first_failure(at: Path, tests: Sequence[str]) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", QUICK, *tests]
    environment = {**os.environ, "PYTHONPATH": f"{at}:{at / 'kernels'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=at, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"tests of {' '.join(tests)} do not end within {LIMIT_S} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if failed else f"pytest ends with {done.returncode}: {done.stdout[-300:]}"


if __name__ == "__main__":
    main()
