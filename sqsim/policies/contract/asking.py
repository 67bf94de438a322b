# SPDX-License-Identifier: Apache-2.0
"""Calls of a policy's code: whatever a third party's code raises becomes a PolicyError of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from sqsim.errors import PolicyError, SqsimError

if TYPE_CHECKING:
    from sqsim.policies.base import Policy

Answer = TypeVar("Answer")

_MOST_SHOWN = 80
_MOST_TOLD = 200


def asked(policy: Policy, what: str, ask: Callable[[], Answer]) -> Answer:
    """Ask a policy. PolicyError: the policy raised an exception, or asked the process to end."""
    try:
        return ask()
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as error:  # a third party's code may raise anything; SystemExit would end the run as a success
        raise PolicyError(f"policy {policy.name}: {what} raised {told(error)}; repair the policy") from error


def made(kind: type[Policy], make: Callable[[], Answer]) -> Answer:
    """Make an object of a policy's class. PolicyError: its own code raised an exception; faults of values pass."""
    try:
        return make()
    except (SqsimError, ValidationError, KeyboardInterrupt):
        raise
    except BaseException as error:  # as above
        raise PolicyError(
            f"policy class {kind.__module__}.{kind.__qualname__}: making an object of it raised {told(error)}; "
            "repair the class"
        ) from error


def told(error: BaseException) -> str:
    """Write an exception as one line of at most 200 characters: its class and the first line of its text."""
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "frozen_instance":
            return f"an error: it assigns to {key!r}, but keys are frozen; declare a PrivateAttr for what it remembers"
        text = f"{key}: {fault['msg']}"
    else:
        try:
            text = str(error)
        except Exception as second:  # noqa: BLE001 - the text is a third party's code too
            text = f"its text raised {type(second).__name__}"
    lines = text.strip().splitlines()
    return _short(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__, _MOST_TOLD)


def shown(value: object) -> str:
    """Write a value that a policy gave as one line of at most 80 characters."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a third party's code may raise anything
        text = f"an object of class {type(value).__name__}"
    return _short(" ".join(text.split()), _MOST_SHOWN)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
