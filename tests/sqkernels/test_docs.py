# SPDX-License-Identifier: Apache-2.0
"""docs/KERNELS.md holds: its examples run and print what they say, and it names every kernel's door."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "KERNELS.md").read_text(encoding="utf-8")
CALLS = re.findall(r"^\| `(\w+)\.(\w+)\(", PAGE, re.MULTILINE)
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=["evict", "baseline"])
def test_examples_print_what_they_say(code, capsys):
    exec(compile(code, "KERNELS.md", "exec"), {})
    said = [re.split(r"\s+# ", line, maxsplit=1)[1] for line in code.splitlines() if line.startswith("print(")]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(said) > 0
    assert [line for line, text in zip(printed, said, strict=True) if text.split(": ")[0] != line] == []


def test_every_call_of_the_table_is_there_and_has_a_reference():
    assert len(CALLS) == len(set(CALLS)) == 11
    for module, name in CALLS:
        found = importlib.import_module(f"sqkernels.{module}")
        assert callable(getattr(found, name))
        assert callable(getattr(found, f"{name}_reference"))
