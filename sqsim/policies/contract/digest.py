# SPDX-License-Identifier: Apache-2.0
"""Digest of a third party's policy: an edited policy gets another digest, so no old result is taken for its own.

Source files stand for a class that lies in one; compiled code and plain values stand for a class of a notebook.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pydantic.fields import FieldInfo, ModelPrivateAttr

from sqsim.policies.base import Policy

_OURS = {"sqsim", "sqreal", "sqkernels"}  # their code has a digest of its own
_INSTALLED = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def digest(kind: type[Policy], distribution: Distribution | None = None) -> str:
    """Compute the sha256 of a policy: all Python files of its distribution, of its package and of its own imports.

    Imports count where they lie next to the policy, outside the installed packages. A class without a file counts by its
    class variables, private attributes, keys and methods, and by the plain values that its code names.
    """
    source = _Source()
    text = ""
    for parent in kind.__mro__[: kind.__mro__.index(Policy)]:
        module = sys.modules.get(parent.__module__)
        if parent.__module__.split(".")[0] not in _OURS:
            source.package(parent.__module__.split(".")[0])
            source.follow(module)
        if _file(module) is None:
            text += source.text(parent)
    if distribution is not None:
        source.files.update(_listed(distribution))
    total = hashlib.sha256()
    for place, content in sorted(source.contents()):
        total.update(f"{place}\0".encode() + content)
    total.update(text.encode())
    return total.hexdigest()


def _listed(distribution: Distribution) -> Iterator[Path]:
    """List the Python files that an installed distribution states."""
    for name in distribution.files or ():
        place = Path(str(distribution.locate_file(name)))
        if place.suffix == ".py" and place.is_file():
            yield place.resolve()


class _Source:
    """The source files of one policy, gathered while its objects are written as text."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self._seen: dict[int, object] = {}  # by identity; it keeps the objects, so that no identity comes twice

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield each file's name and content; the directory does not count, as a package may lie anywhere."""
        for file in self.files:
            yield file.name, file.read_bytes()

    def package(self, name: str) -> None:
        """Add all files of a top-level package, or the file of a top-level module."""
        module = sys.modules.get(name)
        own = _file(module)
        for place in getattr(module, "__path__", ()):
            self.files.update(file.resolve() for file in Path(place).rglob("*.py"))
        if own is not None:
            self.files.add(own)

    def follow(self, module: ModuleType | None) -> None:
        """Add the file of a module, and of the modules that it imports, where they are no installed packages."""
        file = _file(module)
        if module is None or file is None or not self._fresh(module):
            return
        if module.__name__.split(".")[0] in _OURS or any(file.is_relative_to(each) for each in _INSTALLED):
            return
        self.files.add(file)
        for value in list(vars(module).values()):
            self.follow(_module_of(value))

    def text(self, value: Any) -> str:
        """Write an object as text that does not depend on where it was written down or lies in memory."""
        match value:
            case CodeType():
                return repr((value.co_code, value.co_names, value.co_varnames)) + self._all(value.co_consts)
            case list() | tuple():
                return f"{type(value).__name__}[{self._all(value)}]"
            case set() | frozenset():
                return f"{type(value).__name__}[{','.join(sorted(map(self.text, value)))}]"
            case dict():
                return f"dict[{self._all(part for pair in value.items() for part in pair)}]"
            case None | bool() | int() | float() | complex() | str() | bytes():
                return repr(value)
            case staticmethod() | classmethod():
                return f"{type(value).__name__} {self.text(value.__func__)}"
            case property():
                return f"property {self._all((value.fget, value.fset))}"
            case functools.cached_property():
                return f"property {self.text(value.func)}"
            case functools.partial():
                return f"partial {self._all((value.func, value.args, value.keywords))}"
            case ModelPrivateAttr() | FieldInfo():
                more = repr(value.metadata) if isinstance(value, FieldInfo) else ""
                return f"{self._all((value.default, value.default_factory))} {more}"
        module = _module_of(value)
        self.follow(module)
        typed = _file(module) is None and _module_name(value) not in sys.builtin_module_names
        if typed and isinstance(value, FunctionType | type) and self._fresh(value):
            return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        if isinstance(value, ModuleType | FunctionType | type):
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        words = repr(value)
        return type(value).__qualname__ if " at 0x" in words else words

    def _all(self, values: Iterable[Any]) -> str:
        return ",".join(map(self.text, values))

    def _function(self, function: FunctionType) -> str:
        named = sorted(_globals_in(function.__code__) & function.__globals__.keys())
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, list(_cells(function)))
        return f"function({self._all(parts)},{self._all((name, function.__globals__[name]) for name in named)})"

    def _class(self, kind: type) -> str:
        made = {name: value for name, value in vars(kind).items() if not _generated(name, value)}
        keys = getattr(kind, "__pydantic_fields__", {})
        parts = [made, getattr(kind, "__private_attributes__", {}), keys]
        notes = [f"{name}: {key.annotation}" for name, key in keys.items()]
        return f"class {kind.__qualname__}({self._all(parts)},{notes})"

    def _fresh(self, value: object) -> bool:
        """Whether an object comes for the first time; objects may name each other in a circle."""
        fresh = id(value) not in self._seen
        self._seen[id(value)] = value
        return fresh


def _globals_in(code: CodeType) -> set[str]:
    """Find the names of globals that code reads, that of its inner functions included."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_globals_in(each) for each in code.co_consts if isinstance(each, CodeType)))


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue


def _generated(name: str, value: object) -> bool:
    """Whether Python or pydantic put an attribute on a class, and not its author."""
    if name == "_abc_impl" or (_module_name(value) or "").split(".")[0] == "pydantic":
        return True
    return name.startswith("__") and name.endswith("__") and not isinstance(value, FunctionType)


def _module_name(value: object) -> str | None:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else None


def _module_of(value: object) -> ModuleType | None:
    name = _module_name(value)
    return None if name is None else sys.modules.get(name)


def _file(module: ModuleType | None) -> Path | None:
    """Find the file of a module; None where it has none, as in a notebook."""
    place = getattr(module, "__file__", None)
    return Path(place).resolve() if isinstance(place, str) and Path(place).is_file() else None
