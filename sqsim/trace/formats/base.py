# SPDX-License-Identifier: Apache-2.0
"""Contract of an importer, and its inputs: a file's values with their places, options, and notes.

An importer is a `Format`: it names the evidence by which it recognises a file, and turns the file into tasks. It
labels what the file carries (text, timing, usage, references); what the file lacks is filled in, and
labelled, by `sqsim.trace.importing`. Notes (`notes.py`) are counted warnings: each change that was needed, and how often.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from sqsim.errors import TraceError
from sqsim.trace.files import lines, plain_name
from sqsim.trace.formats.csv_rows import csv_rows
from sqsim.trace.formats.json_text import parsed
from sqsim.trace.formats.notes import Notes
from sqsim.trace.schema import Source, Task

HEAD_VALUES = 32
"""Values that an importer sees of a file before it decides whether the file is its own."""

HEAD_LINES = 10_000
"""Lines searched for these values, where a file begins with lines that show nothing of its format."""

_SAYING = {"message", "messages", "payload", "requests", "role", "traj"}
"""Keys of a value that identifies its file's format; a log may begin with any number of titles and snapshots without them."""


Filling = Literal["synthesise", "none"]
"""Handling of values that a file lacks: draw them, or leave them absent."""


@dataclass(frozen=True)
class Options:
    """Options for values that a file lacks. `block_tokens`: tokens that a hash id stands for."""

    references: Filling = "synthesise"
    timing: Filling = "synthesise"
    seed: int = 0
    licence: str | None = None
    block_tokens: int | None = None


class Format(ABC):
    """Foreign format and its importer."""

    name: ClassVar[str]

    @abstractmethod
    def evidence(self, head: Sequence[Any]) -> str | None:
        """Describe the evidence that these first JSON values are of this format; None: there is none."""

    @abstractmethod
    def tasks(self, file: SourceFile, notes: Notes) -> Iterator[Task]:
        """Yield the file's tasks in file order, a sub-agent after its parent. Raises `TraceError`."""

    def units(self, files: Sequence[SourceFile], notes: Notes) -> Iterator[Unit]:
        """Yield the units, each imported or left out whole: a file, unless the format ties files together."""
        for file in files:
            yield Unit(file, lambda file=file: self.tasks(file, notes))  # type: ignore[misc]  # a default binds it

    def beside(self, path: Path) -> list[Path]:  # noqa: ARG002 - most formats have one file a recording
        """List files that belong to a file of this format; they are read with it even if no path names them."""
        return []


class Unit(NamedTuple):
    """Tasks that are imported or left out together, and the file that names them.

    `part`: other units come of the same file, so this one may have no task.
    """

    file: SourceFile
    tasks: Callable[[], Iterator[Task]]
    part: bool = False


class SourceFile:
    """File as JSON values: one a line, or one document over all lines.

    `cut`: the fault of a last line that was cut off, as in a log that is still written; set as the file is read.
    `block_tokens`: what the user stated as the tokens of a hash id's block.
    """

    def __init__(self, path: Path, licence: str | None = None) -> None:
        self.path = path
        self.licence = licence
        self.block_tokens: int | None = None
        self.cut: TraceError | None = None

    @cached_property
    def head(self) -> list[Any]:
        """Return the first values, which identify the format; those without any sign of it are skipped."""
        values = (node.value for node in islice(self.nodes(), HEAD_LINES))
        first = list(islice(values, HEAD_VALUES))
        if len(first) < HEAD_VALUES or not all(map(_typed_only, first)):
            return first
        return list(islice((value for value in values if not _typed_only(value)), HEAD_VALUES)) or first

    def forget_head(self) -> None:
        """Let the first values go once they have identified the format: a directory may have many files."""
        self.__dict__.pop("head", None)

    @cached_property
    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def stem(self) -> str:
        """Return the file's name without its endings, the name of a task without an id."""
        return plain_name(self.path).rsplit(".", 1)[0]

    def source(self, format_name: str) -> Source:
        return Source(format=format_name, file=self.path.name, sha256=self.sha256, licence=self.licence)

    def nodes(self) -> Iterator[Node]:
        """Yield the values with their places: a file whose first line is not JSON is one document; CSV rows are objects."""
        if Path(plain_name(self.path)).suffix == ".csv":
            yield from (Node(row, self.path, number) for number, row in csv_rows(self.path))
            return
        stream = lines(self.path)
        first = next(stream, None)
        if first is None:
            raise TraceError("the file holds nothing", file=self.path, fix="an empty trace is not a trace")
        number, text = first
        try:
            value = parsed(text)
        except ValueError:
            yield Node(self._document(), self.path)
            return
        yield Node(value, self.path, number)
        for number, text in stream:
            try:
                value = parsed(text)
            except ValueError as error:
                fault = TraceError(
                    f"not JSON: {error}", file=self.path, line=number, fix="every line is one JSON value"
                )
                if next(stream, None) is not None:
                    raise fault from None
                self.cut = fault
                return
            yield Node(value, self.path, number)

    def _document(self) -> Any:
        numbered = list(lines(self.path))
        try:
            return parsed("\n".join(text for _, text in numbered))
        except json.JSONDecodeError as error:
            raise TraceError(
                f"not JSON: {error.msg}",
                file=self.path,
                line=numbered[min(error.lineno, len(numbered)) - 1][0],
                fix="give one JSON value a line, or one JSON document",
            ) from None
        except ValueError as error:
            raise TraceError(
                f"not JSON: {error}", file=self.path, fix="give finite numbers, and few lists inside lists"
            ) from None


def _typed_only(value: Any) -> bool:
    """Whether a value has a type but no sign of its file's format."""
    return isinstance(value, dict) and isinstance(value.get("type"), str) and not _SAYING & value.keys()


class Node:
    """JSON value with its place; reading a part checks it, and an error names the part's place."""

    __slots__ = ("file", "line", "path", "value")

    def __init__(self, value: Any, file: Path, line: int | None = None, path: str = "") -> None:
        self.value, self.file, self.line, self.path = value, file, line, path

    def wrong(self, problem: str, key: str | None = None, fix: str | None = None) -> TraceError:
        """Build the error for this value, or for its part `key`."""
        path = self.path if key is None else f"{self.path}.{key}".removeprefix(".")
        return TraceError(problem, file=self.file, line=self.line, field=path or None, fix=fix)

    def get(self, key: str) -> Any:
        """Return the part as it is; None if it is missing or this is not an object."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def node(self, key: str) -> Node:
        """Return a part that is an object."""
        part = self._need(key)
        if not isinstance(part, dict):
            raise self.wrong(f"{_shown(part)} is not an object", key)
        return Node(part, self.file, self.line, f"{self.path}.{key}".removeprefix("."))

    def nodes(self, key: str) -> list[Node]:
        """Return a part that is a list, as nodes."""
        part = self._need(key)
        if not isinstance(part, list):
            raise self.wrong(f"{_shown(part)} is not a list", key)
        base = f"{self.path}.{key}".removeprefix(".")
        return [Node(item, self.file, self.line, f"{base}[{index}]") for index, item in enumerate(part)]

    def items(self) -> list[Node]:
        """Return the elements of a value that is a list."""
        if not isinstance(self.value, list):
            raise self.wrong(f"{_shown(self.value)} is not a list")
        return [Node(item, self.file, self.line, f"{self.path}[{i}]") for i, item in enumerate(self.value)]

    def text(self, key: str) -> str:
        part = self._need(key)
        if not isinstance(part, str):
            raise self.wrong(f"{_shown(part)} is not a text", key)
        return part

    def optional_text(self, key: str) -> str:
        """Return a part that is a text; the empty text where it is missing or null."""
        return "" if self.get(key) is None else self.text(key)

    def texts(self, key: str) -> list[str]:
        """Return a part that is a list of texts; the empty list where it is missing or null."""
        part = self.get(key)
        if part is None:
            return []
        if not isinstance(part, list) or not all(isinstance(item, str) for item in part):
            raise self.wrong(f"{_shown(part)} is not a list of texts", key)
        return list(part)

    def count(self, key: str) -> int:
        """Return a part that is a whole number of tokens, not negative."""
        part = self._need(key)
        if isinstance(part, float) and part.is_integer():
            part = int(part)
        if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part <= 10**9:
            raise self.wrong(f"{_shown(part)} is not a token count", key, "give a whole number from 0 to 10^9")
        return part

    def seconds(self, key: str, unit: float = 1.0) -> float:
        """Return a part that is a time, finite and not negative, in units of `unit` seconds."""
        part = self._need(key)
        fits = isinstance(part, int | float) and not isinstance(part, bool) and abs(part) <= 1e15
        if not fits or not math.isfinite(part) or part < 0:
            raise self.wrong(f"{_shown(part)} is not a time", key, "give a number that is not negative")
        return float(part) * unit

    def whole_numbers(self, key: str) -> list[int]:
        part = self._need(key)
        good = isinstance(part, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in part)
        if not good or any(not -(2**63) <= i < 2**64 for i in part):
            raise self.wrong(f"{_shown(part)} is not a list of 64-bit whole numbers", key)
        return list(part)

    def _need(self, key: str) -> Any:
        if not isinstance(self.value, dict):
            raise self.wrong(f"{_shown(self.value)} is not an object")
        if key not in self.value:
            raise self.wrong(
                "is missing", key, f"the object has {', '.join(map(str, self.value)) or 'no keys'}"
            )
        return self.value[key]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"  # enough to recognise it


def shared_out(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` into whole parts proportional to the weights (equal ones if all are 0); they sum to it."""
    if not weights:
        return []
    if not any(weights):
        weights = [1.0] * len(weights)
    bounds = [0]
    reached, whole = 0.0, math.fsum(weights)
    for weight in weights[:-1]:
        reached += weight
        bounds.append(max(bounds[-1], min(total, round(total * reached / whole))))
    bounds.append(total)
    return [stop - start for start, stop in pairwise(bounds)]
