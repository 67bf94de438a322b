"""Checks of the declarations that a policy's class must make; they run when the class is defined, so no gap reaches a run."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from sqsim.base.part import FITS
from sqsim.errors import PolicyError
from sqsim.policies.asking import asked

if TYPE_CHECKING:
    from sqsim.policies.base import Policy


def same(kind: type[Policy], base: type[Policy], name: str) -> bool:
    """Whether a class inherits `name` from its base unchanged."""
    if name in kind.model_fields:
        return (
            name in base.model_fields
            and kind.model_fields[name].annotation == base.model_fields[name].annotation
        )
    mine, other = getattr(kind, name), getattr(base, name)
    return getattr(mine, "__func__", mine) is getattr(other, "__func__", other)


def name_of(kind: type[Policy]) -> str | None:
    """Find the one word that a class allows as its `name`; None where the class does not fix it."""
    annotation: Any = kind.model_fields["name"].annotation
    words = get_args(annotation) if get_origin(annotation) is Literal else ()
    return words[0] if len(words) == 1 and isinstance(words[0], str) and words[0] else None


def check(kind: type[Policy]) -> None:
    """Raise a PolicyError where a class does not declare something that a run depends on."""
    name = name_of(kind)
    if name is None or kind.model_fields["name"].default != name:
        # A common base of several policies needs no name, as it never runs itself.
        if kind.overrides("name") or not kind.model_fields["name"].is_required():
            raise _refused(
                kind, "its name is not one word", 'declare `name: Literal["my_policy"] = "my_policy"`'
            )
        return
    for key, field in kind.model_fields.items():
        if field.is_required():
            raise _refused(kind, f"key {key!r} has no default", "give every key a default")
    _check_eviction(kind)
    _check_requests(kind)
    if kind.overrides("hold_s") and not kind.overrides("needs_sessions"):
        raise _refused(
            kind, "it overrides hold_s, which needs sessions, but not needs_sessions", "override needs_sessions"
        )


_NEEDS: dict[str, Any] = {
    "hold_s": (int, float),
    "needs_references": bool,
    "needs_sessions": bool,
    "runs_live": bool,
    "aux": tuple,
}


def check_needs(policy: Policy) -> None:
    """Raise a PolicyError where a property that states a need fails or has a wrong value."""
    if name_of(type(policy)) != policy.name:
        raise _refused(
            type(policy), "it has no name of its own", 'declare `name: Literal["my_policy"] = "my_policy"`'
        )
    for name, kind in _NEEDS.items():
        value: Any = asked(policy, name, partial(getattr, policy, name))
        if not isinstance(value, kind) or (name == "hold_s" and not 0 <= float(value) < math.inf):
            raise PolicyError(
                f"policy {policy.name}: {name} is {value!r}; see sqsim/policies/base.py for what it may be"
            )


def _check_eviction(kind: type[Policy]) -> None:
    field = kind.model_fields.get("after_eviction")
    if field is None:
        if kind.overrides("evict", "spawn_aux"):
            raise _refused(
                kind,
                "it evicts, but does not declare after_eviction",
                'add the key `after_eviction: AfterEviction = "reprefill"`',
            )
        return
    words: tuple[Any, ...] = get_args(field.annotation)
    if not words or not set(words) <= set(FITS.values()):
        allowed = " and ".join(repr(each) for each in FITS.values())
        raise _refused(kind, f"after_eviction allows {words or field.annotation}", f"allow some of {allowed}")


def _check_requests(kind: type[Policy]) -> None:
    if kind.overrides("spawn_aux") and not kind.overrides("scripted", "runs_live"):
        raise _refused(
            kind,
            "it starts aux threads, but nothing decides what they name",
            "override scripted to return a decision model, such as sqsim.policies.decisions.DecisionModel",
        )
    if kind.overrides("spawn_aux", "summarise") and not kind.overrides("aux"):
        raise _refused(
            kind,
            "it sends requests of its own, but does not declare their options",
            "override aux, such as AuxOptions(max_new_tokens=256)",
        )


def _refused(kind: type[Policy], problem: str, fix: str) -> PolicyError:
    return PolicyError(f"policy class {kind.__module__}.{kind.__qualname__}: {problem}; {fix}")
