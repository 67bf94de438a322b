# SPDX-License-Identifier: Apache-2.0
"""Import hook for torchvision, on the path only of servers that sqreal starts on a CPU.

PyPI's torchvision is linked against CUDA, so with a CPU build of torch its operators do not load, and
`import torchvision` raises because it describes two of them. This declares their schemas just before that
import. No implementation is given: a call to either still raises.
"""

from __future__ import annotations

import importlib.abc
import sys


class _DeclareSchemas(importlib.abc.MetaPathFinder):
    """Finder that finds nothing and acts once, when torchvision is first imported."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declare()


def _declare() -> None:
    import torch  # noqa: PLC0415 - every Python process reads this file; few need torch

    if torch.version.cuda is None:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


sys.meta_path.insert(0, _DeclareSchemas())
