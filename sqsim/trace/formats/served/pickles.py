# SPDX-License-Identifier: Apache-2.0
"""Read a pickle without executing it: every name in it gives an inert stand-in, and unknown names are refused.

A pickle is a program that may import any name and call it. Here `find_class` imports nothing: it returns a new class of
`Record`, whatever the name, and refuses names that no request dump holds. So all that a pickle can call is a stand-in,
which keeps what it is given. The unpickler is Python's own in Python (Lib/pickle.py): its C twin sizes its memo by a
number in the file, so a file of 10 bytes could fill the memory.
"""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from sqsim.errors import TraceError

MOST_BYTES = 4_000_000_000
"""Largest file that is read."""


class Record:
    """Inert stand-in of an object: the name of its class, the arguments it is made with, and its state."""

    named: ClassVar[str] = ""

    def __new__(cls, *arguments: Any, **words: Any) -> Self:
        """Keep the arguments; nothing else happens."""
        record = object.__new__(cls)
        record.__dict__.update(arguments=(*arguments, *words.values()), fields={}, items=[])
        return record

    def __init__(self, *arguments: Any, **words: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.__dict__["fields"].update(part)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["items"].append((key, value))

    def append(self, item: Any) -> None:
        self.__dict__["items"].append(item)

    def extend(self, items: list[Any]) -> None:
        self.__dict__["items"].extend(items)

    def get(self, key: str) -> Any:
        """Return a field of its state; None if it has none."""
        return self.__dict__["fields"].get(key)


class _Reader(pickle._Unpickler):  # noqa: SLF001 - the unpickler in Python, see above
    """Unpickler that imports nothing."""

    def __init__(self, data: bytes, allowed: Callable[[str], bool]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed
        self._classes: dict[str, type[Record]] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = f"{module_name}.{global_name}"
        if name in _VALUES:
            return _VALUES[name]
        if not self._allowed(name):
            raise _ForbiddenError(name)
        if name not in self._classes:
            self._classes[name] = type("Record", (Record,), {"named": name})
        return self._classes[name]

    def get_extension(self, code: int) -> Any:
        raise _ForbiddenError(f"extension {code} of copyreg")

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - pickle's interface
        raise _ForbiddenError("a persistent id")


class _ForbiddenError(Exception):
    """The pickle names something that no request dump holds."""


def read_pickle(path: Path, allowed: Callable[[str], bool]) -> Any:
    """Return the value of a pickle file. `allowed` decides about names, `module.class`; they give `Record`s.

    TraceError: the file is damaged, is too large, or names anything else.
    """
    data = _bytes(path)
    try:
        return _Reader(data, allowed).load()
    except _ForbiddenError as error:
        raise TraceError(
            f"the pickle names {error}, which no request dump of SGLang holds; nothing of it was executed",
            file=path,
            fix="give a .pkl that SGLang's dump_requests_folder or --crash-dump-folder wrote; do not open this file with pickle",
        ) from None
    except (MemoryError, RecursionError) as error:
        raise _damaged(path, f"it asks for too much memory ({type(error).__name__})") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises nearly anything; all of it is one fault of the file
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size <= MOST_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise TraceError(
            f"cannot be read: {error.strerror}", file=path, fix="check the path and its permissions"
        ) from None
    raise TraceError(
        f"has {size} bytes, more than {MOST_BYTES}",
        file=path,
        fix="dump fewer requests a file (dump_requests_threshold)",
    )


def _damaged(path: Path, reason: str) -> TraceError:
    return TraceError(f"is a damaged pickle: {reason}", file=path, fix="copy the file again, or leave it out")


# Values that are made here and not of the pickle's names.


def _array(_code: str, values: Any = ()) -> list[Any]:
    return list(values)


def _array_of_bytes(_cls: Any, _code: str, kind: int, data: bytes) -> list[int]:
    codes = {8: "i", 12: "q"}  # little-endian, 4 and 8 bytes (Modules/arraymodule.c, enum machine_format_code)
    if kind not in codes:
        raise ValueError(f"an array of kind {kind}")
    return array(codes[kind], data).tolist()


def _made(cls: Any, _base: Any = None, _state: Any = None) -> Any:
    if not isinstance(cls, type) or not issubclass(cls, Record):
        raise TypeError("an object without a class")
    return cls()


_VALUES: dict[str, Callable[..., Any]] = {
    "array.array": _array,
    "array._array_reconstructor": _array_of_bytes,
    "copyreg._reconstructor": _made,
    "copy_reg._reconstructor": _made,  # its name before protocol 3
}
