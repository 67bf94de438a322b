# SPDX-License-Identifier: Apache-2.0
"""Classes of policies that no run could use: each is refused in one line, where it is defined or first used."""

from __future__ import annotations

import pytest

from sqsim.errors import PolicyError, ScenarioError
from sqsim.policies.contract.definition import check_needs

HEAD = """
from typing import Any, ClassVar, Literal
from pydantic import Field, PrivateAttr
from sqsim.policies import *

class P(Policy):
    name: Literal["p"] = "p"
"""


def defined(body: str):
    space = {"__name__": "typed_by_hand"}
    exec(
        compile(
            HEAD + "".join(f"    {line}\n" for line in body.splitlines()), "<cell>", "exec", dont_inherit=True
        ),
        space,
    )
    return space["P"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("k: list[int] = []", "the value of key 'k' is a list, .* use a tuple, or a PrivateAttr"),
        ("k: dict[str, int] | None = None", "the value of key 'k' is a list"),
        ("k: tuple[set[int], ...] = ()", "the value of key 'k' is a list"),
        ("k: Any = [1]", "the value of key 'k' is a list"),
        ("k: int = 'x'", "a default does not fit its key: P: k: 'x' should be a valid integer"),
        ("k: float = float('nan')", "a default does not fit its key: P: k: nan should be a finite number"),
        ("k: Any = float('nan')", "key 'k' is nan, and a record gives None"),
        ("k: Any = object()", "key 'k' cannot be written into a record"),
        ("k: int = Field(3, alias='kk')", "key 'k' has an alias"),
        ("k: 'Unknown' = 3", "the type of a key is not known: .*name 'Unknown' is not defined"),
        ("k = 3", "PydanticUserError: A non-annotated attribute"),
        ("k: object.__class__('T', (), {}) = None", "PydanticSchemaGenerationError"),
        (
            "after_eviction: AfterEviction = 'drop'",
            "after_eviction: 'drop' should be 'in_place' or 'reprefill'",
        ),
        ("def __init__(self, x): pass", "it overrides __init__"),
        ("def model_post_init(self, context): 1/0", "making an object of it raised ZeroDivisionError"),
        ("labelled: ClassVar[Any] = ('k',)", r"labelled is \('k',\)"),
        ("assumed: ClassVar[Any] = 5", "assumed is 5"),
        ("hindsight: ClassVar[Any] = 'no'", "hindsight is 'no'"),
    ],
)
def test_a_class_that_no_run_could_use_is_refused_in_one_line(body, message):
    with pytest.raises(PolicyError, match=rf"^policy class typed_by_hand\.P: .*{message}[^\n]*$"):
        defined(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("k: Any = Field(default_factory=lambda: [1])", r"key 'k' is \[1\]; it could change"),
        (
            "follows_eviction: ClassVar[Any] = 'drop'",
            "follows_eviction is 'drop'; return 'reprefill' or 'in_place' or None",
        ),
        ("follows_eviction = property(lambda _: 1 / 0)", "follows_eviction raised ZeroDivisionError"),
        ("hold_s = property(lambda _: 10**400)\nneeds_sessions = property(lambda _: True)", "hold_s is 1000"),
        (
            "hold_s = property(lambda _: 3.0)\nneeds_sessions = property(lambda _: False)",
            "hold_s is 3.0, which needs sessions",
        ),
        (
            "hold_s = property(lambda _: True)\nneeds_sessions = property(lambda _: True)",
            "hold_s is True; return seconds",
        ),
        ("needs_references = property(lambda _: 1)", "needs_references is 1; return True or False"),
        ("aux = property(lambda _: (5,))", r"aux is \(5,\); return AuxOptions"),
        ("aux = property(lambda _: AuxOptions('5'))", "aux is AuxOptions"),
        ("aux = property(lambda _: AuxOptions(-5))", "aux is AuxOptions"),
        ("aux = property(lambda _: AuxOptions(5, 'now'))", "aux is AuxOptions"),
        ("not_calibrated = property(lambda _: 5)", "not_calibrated is 5; return a tuple of its keys"),
    ],
)
def test_an_object_that_states_nonsense_is_refused_in_one_line(body, message):
    policy = defined(body)()
    with pytest.raises(PolicyError, match=rf"^policy p: {message}[^\n]*$"):
        check_needs(policy)


def test_a_tuple_is_read_from_a_list_and_written_as_one():
    kind = defined("k: tuple[tuple[int, int], ...] = ()")
    policy = kind.model_validate({"name": "p", "k": [[1, 2]]})
    assert policy.k == ((1, 2),)
    assert policy.model_dump(mode="json")["k"] == [[1, 2]]
    with pytest.raises(ScenarioError, match="k"):
        kind(k=[[1]])


def test_a_policy_may_still_remember_in_private():
    kind = defined(
        "_past: list[int] = PrivateAttr(default_factory=list)\ndef model_post_init(self, _): self._past.append(1)"
    )
    check_needs(kind())
