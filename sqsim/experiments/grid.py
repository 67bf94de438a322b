# SPDX-License-Identifier: Apache-2.0
"""The grid of a sweep: every combination of values of scenario keys, as `--grid` gives them.

load.concurrency=8,16,24                        a list
load.concurrency=8..64+8                        a range with both its ends; the step is +1 by default
load.concurrency=8..256*2                       a geometric range
policy={name: none},{name: keep_last, n: 3}     values are YAML in flow style
policy,engine.cache=[{name: none},radix],[{name: sidequest},session]     keys that change together
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqsim.base.strict_yaml import parse, show
from sqsim.errors import ScenarioError

Values = dict[str, Any]
"""Scenario keys, dotted, and their values."""

MOST_VALUES = 100_000
"""Largest number of values of one axis; a longer range is taken for a typing error."""

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*(?:([+*])\s*({_NUMBER}))?\s*")


@dataclass(frozen=True, slots=True)
class Axis:
    """Keys that change together, and their values, one tuple a position."""

    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]


def parse_axis(text: str) -> Axis:
    """Read one `--grid` option. ScenarioError names the option, the fault and the fix."""
    where = f"--grid {text if len(text) <= 60 else text[:57] + '...'}"
    name, equals, said = text.partition("=")
    keys = tuple(key.strip() for key in name.split(","))
    if not equals or not all(re.fullmatch(r"[A-Za-z_0-9.]+", key) for key in keys):
        raise ScenarioError(
            f"{where}: is no KEY=VALUES; give a key and its values, such as load.concurrency=8,16"
        )
    if len(set(keys)) < len(keys):
        raise ScenarioError(f"{where}: a key is named twice; name it once")
    found = _range(said, where)
    if found is None:
        found = parse(f"[{said}]", where, numbered=False).value
        inner = found[0] if len(found) == 1 and isinstance(found[0], list) else None
        if inner is not None and (len(keys) == 1 or all(isinstance(value, list) for value in inner)):
            found = inner  # brackets around all of them
    if not found:
        raise ScenarioError(f"{where}: no value; give at least one")
    if len(keys) == 1:
        values = [(value,) for value in found]
    else:
        odd = next((value for value in found if not isinstance(value, list) or len(value) != len(keys)), None)
        if odd is not None:
            raise ScenarioError(f"{where}: {show(odd)} does not set {len(keys)} keys; give [a,b],[c,d],...")
        values = [tuple(value) for value in found]
    twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if twice is not None:
        raise ScenarioError(f"{where}: {', '.join(map(show, twice))} is named twice; name it once")
    return Axis(keys, tuple(values))


def _range(text: str, where: str) -> list[Any] | None:
    matched = _RANGE.fullmatch(text)
    if matched is None:
        return None
    low, high = _number(matched[1]), _number(matched[2])
    by, step = matched[3] or "+", _number(matched[4] or "1")
    if high < low or (by == "+" and step <= 0) or (by == "*" and (step <= 1 or low <= 0)):
        raise ScenarioError(f"{where}: goes nowhere; write LOW..HIGH+STEP or LOW..HIGH*FACTOR, LOW first")
    found: list[Any] = []
    for place in range(MOST_VALUES + 1):
        value = low + place * step if by == "+" else low * step**place
        if value > high + 1e-9 * abs(high):
            return found
        found.append(round(value, 12) if isinstance(value, float) else value)
    raise ScenarioError(f"{where}: has more than {MOST_VALUES} values; take a larger step")


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def points(axes: Sequence[Axis]) -> list[Values]:
    """List every combination; the last axis changes fastest. ScenarioError: two axes set one key."""
    keys = [key for axis in axes for key in axis.keys]
    twice = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
    if twice is not None:
        raise ScenarioError(f"--grid: {twice} is set by two axes; give its values in one")
    return [
        dict(zip(keys, itertools.chain.from_iterable(chosen), strict=True))
        for chosen in itertools.product(*(axis.values for axis in axes))
    ]


def overrides(values: Values) -> list[str]:
    """Write the values as `--set` takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def written(value: Any) -> Any:
    """Write a value for a column of a table; mappings and lists become JSON."""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
