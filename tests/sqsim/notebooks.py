# SPDX-License-Identifier: Apache-2.0
"""Runs a notebook's cells in one namespace, as Jupyter would: `.venv/bin/python -m tests.sqsim.notebooks FILE` writes the outputs anew.

nbclient (the extra `notebook`) does the same by way of a kernel, a second process that speaks over sockets; cells that only print
do not need one.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any


def executed(path: Path) -> dict[str, Any]:
    """The notebook with the outputs that its cells have now; it runs in its own folder."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    with contextlib.chdir(path.parent):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                cell["execution_count"] = number
                cell["outputs"] = _outputs("".join(cell["source"]), namespace, number)
    return notebook


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run one cell: what it prints, and its last line's value where that is an expression."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if last is not None:
            value = eval(compile(last, f"cell {number}", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def written(notebook: dict[str, Any]) -> str:
    """The file's text, as Jupyter writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name).resolve()
        text = written(executed(file))
        file.write_text(text, encoding="utf-8")
        print(f"{os.path.relpath(file)}: outputs written")  # noqa: T201 - a command that says what it did
