# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas (2020-12) of scenario and study files, for editors and validators.

A schema refuses unknown keys and lists each kind of load and each policy as an alternative. It does not check which values
go together (SPEC.md, "Which combinations exist"); sqsim checks that when it reads the file.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from sqsim.base.part import Part, Word
from sqsim.experiments.study_file import Fill, PanelFile, StudyFile
from sqsim.policies.registry import POLICIES
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import LOADS
from sqsim.scenario.scenario import Scenario

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Form(GenerateJsonSchema):
    """pydantic's schema without titles, which would only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def scenario_schema() -> dict[str, Any]:
    """Build the schema of a scenario's file."""
    schema = _form(Scenario)
    keys = schema["properties"]
    one, many = keys["traces"].pop("items"), {"type": "array", "minItems": keys["traces"].pop("minItems")}
    keys["traces"] = {"description": keys["traces"]["description"], "anyOf": [one, {**many, "items": one}]}
    parts = {
        "engine": _form(Engine),
        "load": {"oneOf": [_tagged(kind, key) for key, kind in LOADS.items()]},
        "policy": {"oneOf": [_tagged(kind, "name") for kind in POLICIES.values()]},
    }
    for name, part in parts.items():
        keys[name] = {**part, "description": keys[name]["description"], "default": keys[name]["default"]}
    return {"$schema": DIALECT, "title": "sqsim scenario", **schema}


def study_schema() -> dict[str, Any]:
    """Build the schema of a study's file; it accepts any key and value in changes to a scenario."""
    schema = _form(StudyFile)
    defined = {kind.__name__: _form(kind) for kind in (PanelFile, Fill)}
    return {"$schema": DIALECT, "title": "sqsim study", **schema, "$defs": defined}


def _form(kind: type[BaseModel]) -> dict[str, Any]:
    """Build the schema of one mapping of a file, with defaults as the file writes them."""
    schema = kind.model_json_schema(schema_generator=_Form)
    schema.pop("$defs", None)
    schema.pop("title", None)
    if "description" in schema:  # a docstring: join its lines, keep its paragraphs
        schema["description"] = re.sub(r"(?<!\n)\n(?!\n)", " ", schema["description"])
    for name, field in kind.model_fields.items():
        key = schema["properties"][name]
        word = next((each.word for each in field.metadata if isinstance(each, Word)), None)
        if word is not None:
            key["anyOf"] = [each for each in key["anyOf"] if word == "none" or each != {"type": "null"}]
            key["anyOf"].append({"const": word})
            key["default"] = word
        elif field.default_factory is not None:
            value = field.get_default(call_default_factory=True)
            key["default"] = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return schema


def _tagged(kind: type[Part], tag: str) -> dict[str, Any]:
    """Build the schema of one alternative; it requires the key that tells it from the others."""
    schema = _form(kind)
    return {**schema, "required": sorted({tag, *schema.get("required", [])})}
