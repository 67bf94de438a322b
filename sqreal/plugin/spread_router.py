# SPDX-License-Identifier: Apache-2.0
"""Random router weights that spread tokens over the experts, so that a random model costs as much as a real one.

SGLang's dummy weights are so small that a router's biases decide: every token is sent to the same few experts, and only
their weights are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sqreal.plugin.hooks import Hook


def spread(model: torch.nn.Module) -> int:
    """Draw the routers' weights from a normal distribution and clear their biases; returns the number of changed tensors."""
    changed = 0
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if ".router." not in name:
            continue
        value = (
            torch.zeros(parameter.shape)
            if name.endswith("bias")
            else torch.randn(parameter.shape, generator=draw)
        )
        parameter.data.copy_(value)
        changed += 1
    return changed


def _loaded(original: Callable[..., torch.nn.Module], *args: Any, **kwargs: Any) -> torch.nn.Module:
    model = original(*args, **kwargs)
    spread(model)
    return model


HOOKS = (
    Hook(
        "sglang.srt.model_loader.loader.DummyModelLoader.load_model",
        "self * model_config device_config",
        _loaded,
    ),
)
