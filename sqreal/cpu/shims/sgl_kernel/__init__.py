# SPDX-License-Identifier: Apache-2.0
"""Stand-in for sgl-kernel, which has no CPU build on PyPI; on the path of servers that sqreal starts on a CPU.

SGLang imports many names from it and, on a CPU, calls one for the models that sqreal serves: that one is implemented here.
Every other name is a function that raises when it is called, so nothing is silently wrong or left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def assign_req_to_token_pool_cpu(
    request_rows: Any, table: Any, starts: Any, ends: Any, slots: Any, _row_length: int
) -> None:
    """Write each request's new KV slots into its row: `table[row, start:end]` takes the next `end - start` slots.

    All but the row length are integer tensors; `slots` holds the requests' slots one after the other.
    """
    taken = 0
    for row, start, end in zip(request_rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: sqreal's stand-in for a CPU does not have it")

    missing.__name__ = name
    return missing
