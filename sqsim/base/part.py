# SPDX-License-Identifier: Apache-2.0
"""Base of a scenario's parts: strict, frozen objects whose fields are the keys of a scenario.

An unknown key is an error, a value is never converted, `nan` and `inf` are refused. A field's description states the
allowed values, and error messages print it. Parts of a scenario and policies share this file, so that neither imports
the other.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sqsim.base.checked import Checked

AfterEviction = Literal["in_place", "reprefill"]
Cache = Literal["radix", "session"]

FITS: dict[Cache, AfterEviction] = {"radix": "reprefill", "session": "in_place"}
"""The `after_eviction` that each cache allows (SPEC.md, "Which combinations exist")."""

# The bound is far above any engine and keeps sums of tokens inside int64.
Count = Annotated[int, Field(ge=1, le=10**12)]
CountOrZero = Annotated[int, Field(ge=0, le=10**12)]
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]


class Word:
    """Annotation of an optional field that writes None as a word: `all`, `auto` or `none`."""

    def __init__(self, word: str) -> None:
        self.word = word

    def _read(self, value: Any) -> Any:
        if isinstance(value, str) and value == self.word:
            return None
        if value is None and self.word != "none":  # `null` is YAML's none, but an empty value is no `auto`
            raise PydanticCustomError("empty", "is not allowed")
        return value

    def _write(self, value: Any) -> Any:
        return self.word if value is None else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            self._read,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(self._write),
        )


def conflict(path: str, problem: str, fix: str) -> PydanticCustomError:
    """Build the error for values that exclude each other; `path` is relative to the model that raises it."""
    return PydanticCustomError("conflict", "{problem}; {fix}", {"path": path, "problem": problem, "fix": fix})


class Part(Checked):
    """Base of every part of a scenario, a policy included."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
