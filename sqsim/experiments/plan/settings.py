# SPDX-License-Identifier: Apache-2.0
"""The settings that a plan chooses from: each policy's choices, and server flags that are free to try without eviction.

A *free* setting needs no specially trained model, no aux threads and no patched server. A policy with hindsight is an
upper bound and is never chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqsim.errors import PolicyError
from sqsim.policies.base import Policy
from sqsim.policies.contract.choices import choices_of
from sqsim.policies.none import NoEviction
from sqsim.policies.registry import POLICIES
from sqsim.policies.sidequest import SideQuest

Changes = dict[str, Any]

KS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Setting:
    """A named set of changes to a scenario, with a note for users before they choose it."""

    name: str
    changes: Changes = field(default_factory=dict)
    free: bool = True
    deployable: bool = True
    note: str = ""

    @property
    def is_sidequest(self) -> bool:
        """Whether the setting is SideQuest's; other policies may also not be free."""
        return bool(self.changes.get("policy", {}).get("name") == SideQuest().name)


_FP8_NOTE = "halves KV; what 8-bit KV does to answers is not simulated"


def settings(ks: Sequence[int] = KS, *, hybrid: bool, sized: bool) -> list[Setting]:
    """List all settings, the simplest first. `hybrid`: the model has a sliding-window pool whose share can be chosen.

    `sized`: KV capacity follows from memory. If the scenario fixes it, settings that free memory change nothing.
    PolicyError: a policy's `choices` fails, or two settings have one name.
    """
    none: Changes = {"engine.cache": "radix", "policy": {"name": NoEviction().name}}
    sizes = []
    if hybrid and sized:
        note = "a smaller sliding-window pool leaves more full-attention slots; one flag"
        sizes.append(Setting("none, swa ratio 0.1", {**none, "engine.swa_full_tokens_ratio": 0.1}, note=note))
    if sized:
        note = "one flag; less is left for activations, which are not simulated"
        sizes.append(Setting("none, mem 0.93", {**none, "engine.mem_fraction": 0.93}, note=note))
        sizes.append(Setting("none, fp8 KV", {**none, "engine.kv_dtype": "fp8_e4m3"}, note=_FP8_NOTE))
    base, *others = [setting for kind in POLICIES.values() for setting in _of(kind, ks)]
    found = [base, *sizes, *others]
    _check_names(found)
    return sorted(found, key=lambda each: (not each.free, not each.deployable))


def _check_names(found: Sequence[Setting]) -> None:
    """Refuse two settings of one name: tables, pages and files tell settings apart by it."""
    first: dict[str, Setting] = {}
    for each in found:
        if (other := first.setdefault(each.name, each)) is not each:
            one, two = (setting.changes["policy"]["name"] for setting in (other, each))
            raise PolicyError(
                f"policy {two!r}: choices() names a setting {each.name!r}, as policy {one!r} does already; "
                "give each choice its own name"
            )


def _of(kind: type[Policy], ks: Sequence[int]) -> list[Setting]:
    return [
        Setting(
            choice.name,
            {"engine.cache": choice.cache, "policy": {"name": kind().name, **choice.keys}},  # type: ignore[call-arg]  # every key has a default
            free=choice.free,
            deployable=not kind.hindsight,
            note=choice.note,
        )
        for choice in choices_of(kind, ks)
    ]
