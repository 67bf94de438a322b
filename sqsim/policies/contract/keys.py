# SPDX-License-Identifier: Apache-2.0
"""Keys of a policy: values that never change, are read from a scenario, and are written into a record."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from sqsim.policies.contract.asking import shown, told

if TYPE_CHECKING:
    from sqsim.policies.base import Policy

_CHANGE = (list, dict, set, bytearray, deque, MutableMapping, MutableSequence, MutableSet)

CHANGES = "it could change during a run; use a tuple, or a PrivateAttr for what the policy remembers"

PLAIN = "use numbers, words, true and false, and tuples of them"


def changing_key(kind: type[Policy]) -> str | None:
    """Find the first key whose type or default is a list, dict, set or the like; None where there is none."""
    for name, field in kind.model_fields.items():
        types = [part for part in _parts(field.annotation) if isinstance(part, type)]
        if any(issubclass(part, _CHANGE) for part in types) or field.default_factory in _CHANGE:
            return name
        if changes(field.default):
            return name
    return None


def changes(value: object) -> bool:
    """Whether a value, or a part of a tuple, can change in place."""
    return isinstance(value, _CHANGE) or (isinstance(value, tuple) and any(map(changes, value)))


def keys_of(kind: type[Policy], names: object) -> bool:
    """Whether `names` is a tuple of keys of a policy."""
    return isinstance(names, tuple) and all(
        isinstance(name, str) and name in kind.model_fields for name in names
    )


def aliased_key(kind: type[Policy]) -> str | None:
    """Find the first key that has an alias; None where there is none."""
    for name, field in kind.model_fields.items():
        if any((field.alias, field.validation_alias, field.serialization_alias)):
            return name
    return None


def unwritable(policy: Policy) -> str | None:
    """Say why a policy's keys cannot be written into a record and read again; None where they can."""
    for name in type(policy).model_fields:
        try:
            json.dumps(policy.model_dump(mode="json", include={name}, warnings=False), allow_nan=False)
        except (PydanticSerializationError, ValueError, TypeError) as error:
            return f"key {name!r} cannot be written into a record: {told(error)}"
    try:
        back = type(policy).model_validate(policy.model_dump(mode="json", warnings=False))
    except ValidationError as error:
        return f"its keys cannot be read again from a record: {told(error)}"
    for name in type(policy).model_fields:
        if getattr(back, name) != getattr(policy, name):
            return f"key {name!r} is {shown(getattr(policy, name))}, and a record gives {shown(getattr(back, name))}"
    return None


def as_tuples(kind: type[Policy], values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists into tuples for the keys that declare a tuple."""
    fields = kind.model_fields
    return {
        key: _tuple(value)
        if isinstance(value, list) and key in fields and _is_tuple(fields[key].annotation)
        else value
        for key, value in values.items()
    }


def _is_tuple(annotation: Any) -> bool:
    return any(isinstance(part, type) and issubclass(part, tuple) for part in _parts(annotation))


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of."""
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _parts(part)
