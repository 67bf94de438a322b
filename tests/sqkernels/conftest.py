# SPDX-License-Identifier: Apache-2.0
"""Tests of kernels are marked `kernels` and run in processes of their own, with Triton's interpreter, or are skipped aloud."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]


class Skipped(pytest.Module):
    """A file that is not even imported: it imports torch and triton itself."""

    def collect(self):
        if MISSING:
            pytest.skip(f"needs {' and '.join(MISSING)}: make test-kernels")
        # Triton reads it when a kernel is made, and a server started from this process would read it too.
        pytest.skip("needs TRITON_INTERPRET=1, in a process of its own: make test-kernels")


def pytest_pycollect_makemodule(module_path, parent):
    if MISSING or os.environ.get("TRITON_INTERPRET") != "1":
        return Skipped.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kernels)
