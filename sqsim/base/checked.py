# SPDX-License-Identifier: Apache-2.0
"""Strict objects for Python code: a wrong value raises a ScenarioError with the text that a file's value would get.

The content of a file is validated by `model_validate` instead, which reports all faults at once with their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sqsim.base.complaints import alike, complaint
from sqsim.base.strict_yaml import KeyPath, dotted
from sqsim.errors import ScenarioError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic exports it under no public name


class CheckedType(ModelMetaclass):
    """Metaclass that raises our error when Python code calls the class.

    pydantic does not call the class for a part inside another part, so nested parts keep pydantic's own error.
    """

    if not TYPE_CHECKING:  # a type checker reads the signature from the fields

        def __call__(cls, *args: Any, **values: Any) -> Any:  # noqa: N805 - of a metaclass
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise cls._refused(values, error) from None


class Checked(BaseModel, metaclass=CheckedType):
    """Base of objects that check their values whenever they are built, a changed copy included."""

    @classmethod
    def _refused(cls, values: Mapping[str, Any], error: ValidationError) -> ScenarioError:  # noqa: ARG003 - Scenario needs them
        """Build the error for refused values."""
        return ScenarioError("\n".join(cls._explain(fault) for fault in error.errors(include_url=False)))

    @classmethod
    def _explain(cls, fault: ErrorDetails) -> str:
        path: KeyPath = fault["loc"]
        keys = cls.model_fields
        if fault["type"] == "conflict":
            path, text = (*path, *fault["ctx"]["path"].split(".")), fault["msg"]
        elif fault["type"] == "extra_forbidden":
            text = f"unknown key{alike(str(path[-1]), keys)}; allowed here: {', '.join(keys)}"
        else:
            allowed = keys[str(path[0])].description if path else None
            text = complaint(fault) + ("" if allowed is None else f"; allowed: {allowed}")
        return f"{cls.__name__}: {dotted(path)}: {text}"

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the object; unlike pydantic's own method, this one checks the values of `update`."""
        if not update:
            return super().model_copy(deep=deep)
        words = self.model_dump(mode="json", exclude_unset=True)  # None is written as a word: auto, all
        values = {name: getattr(self, name) for name in self.model_fields_set}
        kept = {name: words[name] if value is None else value for name, value in values.items()}
        return type(self)(**{**kept, **update})
