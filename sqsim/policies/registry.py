# SPDX-License-Identifier: Apache-2.0
"""Policies by name: the built-in ones, and those of installed packages (entry points of group `sqsim.policies`).

A package is imported only when a scenario names its policy. The entry point's name is the policy's name:

    [project.entry-points."sqsim.policies"]
    drop_reread = "my_package:DropReread"
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from sqsim.errors import PolicyError
from sqsim.policies.base import Policy
from sqsim.policies.compaction import Compaction
from sqsim.policies.contract.asking import told
from sqsim.policies.contract.definition import name_of
from sqsim.policies.contract.digest import digest
from sqsim.policies.keep_last import KeepLast
from sqsim.policies.none import NoEviction
from sqsim.policies.oracle import Oracle
from sqsim.policies.pause import Pause
from sqsim.policies.pin_ttl import PinTtl
from sqsim.policies.sidequest import SideQuest

GROUP = "sqsim.policies"

BUILT_IN: dict[str, type[Policy]] = {
    "none": NoEviction,
    "sidequest": SideQuest,
    "keep_last": KeepLast,
    "oracle": Oracle,
    "compaction": Compaction,
    "pin_ttl": PinTtl,
    "pause": Pause,
}


class _Policies(Mapping[str, type[Policy]]):
    """Every policy by its name. A look-up imports the policy; a PolicyError names a package that cannot be used."""

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*BUILT_IN, *_entry_points()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in _entry_points()

    def __getitem__(self, name: str) -> type[Policy]:
        found = _entry_points().get(name, ())
        if name not in BUILT_IN and not found:
            raise KeyError(name)
        if len(found) + (name in BUILT_IN) > 1:
            owners = [*(["sqsim"] if name in BUILT_IN else []), *map(_package, found)]
            raise PolicyError(
                f"policy {name!r} is in several packages: {', '.join(owners)}; uninstall all but one, or rename one"
            )
        return BUILT_IN[name] if name in BUILT_IN else _load(found[0])


POLICIES: Mapping[str, type[Policy]] = _Policies()


def known(name: str) -> type[Policy] | None:
    """Find the policy of this name; None where it is not installed, as pages may show runs of such a policy."""
    try:
        return POLICIES.get(name)
    except PolicyError:
        return None


def registered(policy: Policy) -> None:
    """Raise a PolicyError where another class has the policy's name: its record would be read as that class's."""
    if policy.name not in POLICIES:
        return
    other = POLICIES[policy.name]
    if type(policy) is not other:
        raise PolicyError(
            f"policy {policy.name!r} is {_class(other)}, and this one is {_class(type(policy))}; give it another name"
        )


def is_built_in(policy: Policy) -> bool:
    """Whether a policy is part of sqsim."""
    return BUILT_IN.get(policy.name) is type(policy)


@cache
def source_digest(kind: type[Policy]) -> str:
    """Compute the sha256 of a policy's source; of one that a package offers, of all Python files of its distribution."""
    name = name_of(kind)
    points = _entry_points().get(name, ()) if name is not None and known(name) is kind else ()
    return digest(kind, points[0].dist if points else None)


@cache
def _entry_points() -> dict[str, tuple[importlib.metadata.EntryPoint, ...]]:
    found: dict[str, dict[Any, importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        # A package that is on the path twice counts once.
        found.setdefault(point.name, {}).setdefault((_package(point), point.value), point)
    return {name: tuple(points.values()) for name, points in sorted(found.items())}


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


@cache
def _load(point: importlib.metadata.EntryPoint) -> type[Policy]:
    where = f"policy {point.name!r} of package {_package(point)} ({point.value})"
    try:
        kind: Any = point.load()
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's module may raise anything, SystemExit too
        raise PolicyError(
            f"{where}: cannot be imported: {told(error)}; repair or uninstall the package"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise PolicyError(f"{where}: is no class derived from sqsim.policies.Policy; derive it from that")
    if name_of(kind) != point.name:
        raise PolicyError(
            f"{where}: calls itself {name_of(kind)!r}; give the entry point and the class one name"
        )
    return kind


def _class(kind: type[Policy]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
