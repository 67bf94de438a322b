"""What a plan chooses from: the scenario as it is, what costs nothing to try, and SideQuest at several K.

A *free* setting needs no model trained for it, no aux threads and no patched server. The oracle is a bound and is never
chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Changes = dict[str, Any]

KS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Setting:
    """A name, the scenario keys that it changes, and what a user should know before choosing it."""

    name: str
    changes: Changes = field(default_factory=dict)
    free: bool = True
    deployable: bool = True
    note: str = ""


_RADIX: Changes = {"engine.cache": "radix"}
_FP8_NOTE = "halves KV; what 8-bit KV does to answers is not simulated"
_PLUGIN = "needs the in-place plugin, which no stock server has, and a model that can name stale responses"
_MODEL = "needs a model that can name stale responses"


def settings(ks: Sequence[int] = KS, *, hybrid: bool, sized: bool) -> list[Setting]:
    """All settings, the simplest first. `hybrid`: the model has a sliding-window pool whose share can be chosen.

    `sized`: KV capacity follows from memory. Where the scenario fixes it, what frees memory would change nothing.
    """
    none: Changes = {**_RADIX, "policy": {"name": "none"}}
    free = [Setting("none", none, note="nothing is evicted: the base")]
    if hybrid and sized:
        note = "a smaller sliding-window pool leaves more full-attention slots; one flag"
        free.append(Setting("none, swa ratio 0.1", {**none, "engine.swa_full_tokens_ratio": 0.1}, note=note))
    if sized:
        note = "one flag; less is left for activations, which are not simulated"
        free.append(Setting("none, mem 0.93", {**none, "engine.mem_fraction": 0.93}, note=note))
        free.append(Setting("none, fp8 KV", {**none, "engine.kv_dtype": "fp8_e4m3"}, note=_FP8_NOTE))
    free += [
        Setting(
            "keep_last 3",
            {**_RADIX, "policy": {"name": "keep_last", "n": 3, "after_eviction": "reprefill"}},
            note="evicts without asking: see what was evicted and needed later",
        ),
        Setting(
            "pause",
            {**_RADIX, "policy": {"name": "pause"}},
            note="agents take turns at the memory; the framework must know KV capacity",
        ),
    ]
    sidequest = [
        Setting(
            f"sidequest K={k} / {after}",
            {"engine.cache": cache, "policy": {"name": "sidequest", "k": k, "after_eviction": after}},
            free=False,
            note=note,
        )
        for cache, after, note in (("radix", "reprefill", _MODEL), ("session", "in_place", _PLUGIN))
        for k in ks
    ]
    oracle = Setting(
        "oracle / in_place",
        {"engine.cache": "session", "policy": {"name": "oracle", "after_eviction": "in_place"}},
        free=False,
        deployable=False,
        note="hindsight: a bound, no policy to deploy",
    )
    return [*free, *sidequest, oracle]
