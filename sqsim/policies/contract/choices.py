# SPDX-License-Identifier: Apache-2.0
"""Settings that a policy proposes to plans and regions, checked: a wrong one is an error that names the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from sqsim.base.part import FITS
from sqsim.errors import PolicyError
from sqsim.policies.base import Choice, Policy
from sqsim.policies.contract.asking import shown, told
from sqsim.policies.contract.definition import check_needs, name_of


def choices_of(kind: type[Policy], ks: Sequence[int]) -> list[Choice]:
    """Return a policy's choices. PolicyError: `choices` raised an exception, or gave a setting that does not exist."""
    try:
        answer: Any = kind.choices(ks)
        found = list(answer) if isinstance(answer, Sequence) else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's code may raise anything
        raise PolicyError(f"policy {name_of(kind)}: choices raised {told(error)}; repair the policy") from error
    if found is None or not all(isinstance(each, Choice) for each in found):
        raise _wrong(kind, shown(answer), "return a list of Choice, [] for none")
    for choice in found:
        _check(kind, choice)
    return found


def _check(kind: type[Policy], choice: Choice) -> None:
    if not (isinstance(choice.name, str) and choice.name and isinstance(choice.note, str)):
        raise _wrong(kind, shown(choice), "give it a name, and a note that is a text")
    if choice.cache not in FITS or not isinstance(choice.free, bool) or not isinstance(choice.keys, dict):
        raise _wrong(kind, shown(choice), "give cache radix or session, keys a dict, free True or False")
    try:
        policy = kind.model_validate({"name": name_of(kind), **choice.keys})
    except (ValidationError, TypeError) as error:
        raise _wrong(kind, f"{choice.name!r} with keys {shown(choice.keys)}", told(error)) from error
    check_needs(policy)
    if policy.follows_eviction not in (None, FITS[choice.cache]) or (
        policy.needs_sessions and choice.cache != "session"
    ):
        raise _wrong(kind, f"{choice.name!r} on cache {choice.cache}", "name the cache that the policy runs on")


def _wrong(kind: type[Policy], what: str, fix: str) -> PolicyError:
    return PolicyError(f"policy {name_of(kind)}: choices gives {what}; {fix}")
