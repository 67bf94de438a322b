# SPDX-License-Identifier: Apache-2.0
"""Checks of the declarations that a policy's class must make; they run when the class is defined, so no gap reaches a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import PydanticUndefinedAnnotation, PydanticUserError

from sqsim.base.part import FITS, Part
from sqsim.errors import PolicyError, ScenarioError
from sqsim.policies.contract.asking import asked, shown, told
from sqsim.policies.contract.keys import CHANGES, PLAIN, aliased_key, changes, changing_key, keys_of, unwritable

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
    _check_keys(kind)
    _check_eviction(kind)
    _check_requests(kind)
    _check_notes(kind)
    if kind.overrides("hold_s") and not kind.overrides("needs_sessions"):
        raise _refused(
            kind, "it overrides hold_s, which needs sessions, but not needs_sessions", "override needs_sessions"
        )
    _check_default(kind)


def _check_keys(kind: type[Policy]) -> None:
    if not kind.__pydantic_complete__:
        try:
            kind.model_rebuild()
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise _refused(
                kind, f"the type of a key is not known: {told(error)}", "import it, and not under TYPE_CHECKING"
            ) from error
    if any("__init__" in vars(each) for each in kind.__mro__[: kind.__mro__.index(Part)]):
        raise _refused(
            kind, "it overrides __init__", "declare keys as fields, and a PrivateAttr for what it remembers"
        )
    for key, field in kind.model_fields.items():
        if field.is_required():
            raise _refused(kind, f"key {key!r} has no default", "give every key a default")
    if (changing := changing_key(kind)) is not None:
        raise _refused(kind, f"the value of key {changing!r} is a list, a dict, a set or the like", CHANGES)
    if (aliased := aliased_key(kind)) is not None:
        raise _refused(kind, f"key {aliased!r} has an alias", "name the key as scenarios do")


def _check_notes(kind: type[Policy]) -> None:
    if not isinstance(kind.hindsight, bool):
        raise _refused(kind, f"hindsight is {shown(kind.hindsight)}", "declare True or False")
    for note in ("labelled", "assumed"):
        if not keys_of(kind, getattr(kind, note)):
            raise _refused(
                kind, f"{note} is {shown(getattr(kind, note))}", 'declare a tuple of its keys, ("k",)'
            )


def _check_default(kind: type[Policy]) -> None:
    try:
        policy = kind()  # type: ignore[call-arg]  # every key has a default
    except ScenarioError as error:
        raise _refused(
            kind, f"a default does not fit its key: {str(error).splitlines()[0]}", "change one of them"
        ) from None
    problem = unwritable(policy)
    if problem is not None:
        raise _refused(kind, problem, PLAIN)


MOST_HELD_S = 1e9
"""Seconds, some 30 years; sums of simulated time stay exact enough below it."""

_BOOLS = ("needs_references", "needs_sessions", "runs_live")


def check_needs(policy: Policy) -> None:
    """Raise a PolicyError where a property that states a need fails or has a wrong value."""
    if name_of(type(policy)) != policy.name:
        raise _refused(
            type(policy), "it has no name of its own", 'declare `name: Literal["my_policy"] = "my_policy"`'
        )
    for key in type(policy).model_fields:
        if changes(getattr(policy, key)):
            raise PolicyError(f"policy {policy.name}: key {key!r} is {shown(getattr(policy, key))}; {CHANGES}")
    if (problem := unwritable(policy)) is not None:
        raise PolicyError(f"policy {policy.name}: {problem}; {PLAIN}")
    for name in _BOOLS:
        _need(policy, name, lambda value: isinstance(value, bool), "True or False")
    _need(policy, "hold_s", is_hold, f"seconds, 0 to {MOST_HELD_S:g}")
    if policy.hold_s > 0 and not policy.needs_sessions:
        raise PolicyError(
            f"policy {policy.name}: hold_s is {policy.hold_s!r}, which needs sessions, but needs_sessions is False; "
            "return True there"
        )
    _need(
        policy, "aux", _is_aux, "AuxOptions(tokens, start): a whole number and after_main_prefill or with_main"
    )
    words = [*FITS.values(), *(() if policy.overrides("evict", "spawn_aux") else (None,))]
    _need(policy, "follows_eviction", lambda value: value in words, " or ".join(map(repr, words)))
    _need(
        policy,
        "not_calibrated",
        lambda value: keys_of(type(policy), value),
        'a tuple of its keys, such as ("k",)',
    )


def is_hold(value: object) -> bool:
    """Whether a value is a time for which a server can hold a session."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_HELD_S


def _is_aux(value: Any) -> bool:
    if not (isinstance(value, tuple) and hasattr(value, "max_new_tokens") and hasattr(value, "start")):
        return False
    tokens = value.max_new_tokens
    whole = isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= 10**12
    return whole and value.start in ("after_main_prefill", "with_main")


def _need(policy: Policy, name: str, fits: Callable[[Any], bool], fix: str) -> None:
    value: Any = asked(policy, name, partial(getattr, policy, name))
    if not asked(policy, name, lambda: fits(value)):
        raise PolicyError(f"policy {policy.name}: {name} is {shown(value)}; return {fix}")


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
