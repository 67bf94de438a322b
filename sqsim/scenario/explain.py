# SPDX-License-Identifier: Apache-2.0
"""Explanations of a refused scenario: `FILE:LINE: key.path: value and what is wrong with it; what is allowed`."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sqsim.base.complaints import alike, complaint
from sqsim.base.part import Part
from sqsim.base.strict_yaml import Document, KeyPath, dotted, show
from sqsim.errors import ScenarioError
from sqsim.policies.registry import BUILT_IN, POLICIES
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import LOADS


def refusal(scenario: type[Part], document: Document, error: ValidationError) -> ScenarioError:
    """Turn the faults that pydantic found into one error, a line a fault. `scenario` is the class that refused."""
    faults = error.errors(include_url=False)
    items = {fault["loc"][:-1] for fault in faults if fault["loc"]}
    # Do not report a list with wrong items as too short as well.
    faults = [fault for fault in faults if not (fault["type"] == "too_short" and fault["loc"] in items)]
    return ScenarioError("\n".join(_explain(scenario, document, fault) for fault in faults))


def _explain(scenario: type[Part], document: Document, fault: ErrorDetails) -> str:
    """Write a fault as `PLACE: key.path: what is wrong; what is allowed`."""
    path, model = _locate(scenario, fault["loc"], document.value)
    kind, value = fault["type"], fault["input"]
    if kind == "conflict":
        path = (*path, *fault["ctx"]["path"].split("."))
        text = fault["msg"]
    elif kind == "extra_forbidden":
        text = f"unknown key{_suggest(scenario, str(path[-1]), model)}; allowed here: {', '.join(model.model_fields)}"
    elif kind == "choice" and isinstance(value, dict):
        path, text = _choice(scenario, path, value)
    else:
        field = model.model_fields[str(next(part for part in reversed(path) if isinstance(part, str)))]
        allowed = f"; allowed: {field.description}" if field.description else ""
        text = f"{complaint(fault)}{allowed}"
    return f"{document.place(path)}: {dotted(path)}: {text}"


def _locate(scenario: type[Part], loc: tuple[int | str, ...], content: Any) -> tuple[KeyPath, type[Part]]:
    """Turn a location inside the models into a key path, and find the model whose field is at its end."""
    if len(loc) < 2 or isinstance(loc[1], int):
        return loc, scenario
    if loc[0] == "engine":
        return loc, Engine
    if loc[0] == "policy":
        return loc, POLICIES[content["policy"]["name"]]
    return (loc[0], *loc[2:]), LOADS[str(loc[1])]  # loc[1] is the variant's tag and no key


def _suggest(scenario: type[Part], key: str, model: type[Part]) -> str:
    """Suggest the key that was meant: a similar one here, else the part that has a key of this name."""
    if close := alike(key, model.model_fields):
        return close
    rooms: dict[str, type[Part]] = {
        "": scenario,
        "engine.": Engine,
        **{f"load.{name} with ": kind for name, kind in LOADS.items()},
    }
    rooms |= {f"policy {name}: policy.": kind for name, kind in BUILT_IN.items()}
    found = next((room for room, kind in rooms.items() if key in kind.model_fields), None)
    return "" if found is None else f"; did you mean {found}{key}?"


def _choice(scenario: type[Part], path: KeyPath, value: dict[str, Any]) -> tuple[KeyPath, str]:
    """Explain a load or policy of an unknown kind."""
    if path == ("policy",):
        known = ", ".join(POLICIES)
        if "name" not in value:
            return (*path, "name"), f"missing; allowed: {known}"
        return (
            *path,
            "name",
        ), f"{show(value['name'])} is no policy{alike(value['name'], POLICIES)}; allowed: {known}"
    named = [key for key in LOADS if key in value]
    if named:
        problem = f"{' and '.join(named)} exclude each other"
    else:
        problem = f"{show(value)} names no load" + next(
            (close for key in value if (close := alike(key, LOADS))), ""
        )
    return path, f"{problem}; allowed: {scenario.model_fields['load'].description}"
