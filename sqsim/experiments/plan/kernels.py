# SPDX-License-Identifier: Apache-2.0
"""The kernels that a server may run instead, as a discrete doubt: the GPUs that the answer's settings need under each.

A server picks one by version and flags, and its log says which. No draw averages over that choice, so a plan searches again
under each alternative of the profile that it assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqsim.experiments.plan.search import Search
from sqsim.models.cost.profile import Profile, alternatives


def searches_under_alternatives(
    shown: Sequence[Search], profile_of: Callable[[Search], Profile]
) -> list[tuple[Search, Profile, Search]]:
    """Make a search of each setting under each other kernel: (the answer's search, the other profile, the new search)."""
    made = []
    for search in shown:
        for other in alternatives(profile_of(search)):
            setting = replace(search.setting, changes={**search.setting.changes, "engine.profile": other.name})
            made.append((search, other, Search(setting, search.gpu, search.load, search.slos)))
    return made


def described(
    found: Sequence[tuple[Search, Profile, Search]],
    profile_of: Callable[[Search], Profile],
    tensor_parallel: int,
) -> list[dict[str, Any]]:
    """Build the list `kernels` of plan.json: what each setting needs if the server runs each kernel."""

    def needs(search: Search, profile: Profile) -> dict[str, Any]:
        return {
            "profile": profile.name,
            "gpus": None if search.fewest is None else search.fewest * tensor_parallel,
            "shown_by": profile.shown_by or profile.note,
            "error": search.error,
        }

    return [
        {
            "setting": search.setting.name,
            "gpu": search.gpu,
            "needs": [needs(search, profile_of(search)), needs(again, other)],
        }
        for search, other, again in found
    ]


def sentences(kernels: Sequence[dict[str, Any]]) -> list[str]:
    """Say what the choice of the kernel decides; nothing where every kernel needs the same."""
    lines = []
    for entry in kernels:
        assumed, other = entry["needs"]
        if assumed["gpus"] != other["gpus"]:
            lines.append(
                f"{entry['setting']} on {entry['gpu']} needs {_gpus(assumed)} if your server runs {assumed['profile']}, "
                f"{_gpus(other)} if it runs {other['profile']}: {assumed['shown_by']}."
            )
    return lines


def _gpus(needs: dict[str, Any]) -> str:
    if needs["gpus"] is None:
        return "more than any number of GPUs" if needs["error"] is None else "what cannot be run"
    return f"{needs['gpus']} GPU{'' if needs['gpus'] == 1 else 's'}"
