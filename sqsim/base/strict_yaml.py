# SPDX-License-Identifier: Apache-2.0
"""YAML for scenarios: plain values, and the place of each.

A key that appears twice is an error (PyYAML keeps the last one silently). Anchors, aliases and explicit
tags are errors: they hide the values of a file. Dates stay text, and `1e6` is a number as in YAML 1.2.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from sqsim.errors import ScenarioError

KeyPath = tuple[str | int, ...]

_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str")}
_DATE = "tag:yaml.org,2002:timestamp"


class Document(NamedTuple):
    """A parsed text: its value, and for each key path the place that set the key (`FILE:LINE` or `--set a.b=v`)."""

    value: Any
    places: dict[KeyPath, str]

    def place(self, path: KeyPath) -> str:
        """Find the place of a key, or of the nearest mapping around it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses anchors and aliases. Only its constructors of scalars are used."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None):
            problem = "anchors and aliases are not used here; write the value out"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)

    def scalar(self, node: yaml.Node) -> Any:
        if node.tag == _DATE:
            return node.value
        if node.tag not in _PLAIN:
            raise ValueError(f"tag {node.tag!r} is not used here; write a plain value")
        value = self.construct_object(node)
        if isinstance(value, int) and value.bit_length() > 64:
            raise ValueError("a whole number has at most 64 bits here")
        return value


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def show(value: Any, limit: int = 60) -> str:
    """Quote a value from a file for a message, shortened to `limit` characters."""
    if value is None:
        return "an empty value"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        shown = [f"{_key(key)[:20]}: {show(item, 20)}" for key, item in list(value.items())[:4]]
        return "{" + ", ".join(shown + ["..."] * (len(value) > 4)) + "}"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class _Tree:
    """Converter from the nodes of one text to plain values; it notes the place of each."""

    def __init__(self, loader: _Loader, where: str, numbered: bool) -> None:
        self.loader, self.where, self.numbered = loader, where, numbered
        self.places: dict[KeyPath, str] = {(): where}

    def place(self, mark: Any) -> str:
        return f"{self.where}:{mark.line + 1}" if mark is not None and self.numbered else self.where

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.places.setdefault(path, self.place(node.start_mark))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self.loader.scalar(node)
        except (ValueError, LookupError) as error:
            here = ": ".join(filter(None, (self.place(node.start_mark), dotted(path))))
            raise ScenarioError(f"{here}: {show(node.value)} cannot be read: {error}") from error

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = self.place(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                raise ScenarioError(f"{here}: a key must be a plain word, not a list or a mapping")
            key = str(key_node.value)
            below = (*path, key)
            if key in mapping:
                raise ScenarioError(
                    f"{here}: {dotted(below)}: set twice, first at {self.places[below]}; remove one"
                )
            self.places[below] = here
            mapping[key] = self.value(value_node, below)
        return mapping


def parse(text: str | bytes, where: str, numbered: bool = True) -> Document:
    """Read one YAML document. `where` names it in messages, with line numbers if `numbered`. ScenarioError."""
    try:
        loader = _Loader(text)
        tree = _Tree(loader, where, numbered)
        node = loader.get_single_node()
        return Document(None if node is None else tree.value(node, ()), tree.places)
    except yaml.MarkedYAMLError as error:
        place = tree.place(error.problem_mark or error.context_mark)
        raise ScenarioError(f"{place}: cannot be read as YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{where}: cannot be read as YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ScenarioError(f"{where}: nested too deeply; a scenario has three levels") from error


def dotted(path: KeyPath) -> str:
    """Join a key path as messages and `--set` write it: `engine.page_size`, `traces[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path)
    return text.removeprefix(".")


def _key(key: object) -> str:
    """Write a key for a message; one that would break the line, or that is no text, by its repr."""
    return key if isinstance(key, str) and key.isprintable() else repr(key)


def key_path(name: str) -> tuple[str, ...]:
    """Split a dotted key: `engine.page_size`."""
    return tuple(part.strip() for part in name.split("."))


def given_by(option: str, override: str) -> str:
    """Name the place of an override for messages: the option and the shortened override."""
    text = " ".join(override.split())
    return f"{option} {text if len(text) <= 60 else text[:57] + '...'}"


def set_value(document: Document, override: str, where: str | None = None) -> None:
    """Apply one `a.b=value` to a document; the value is YAML: a scalar, or a list or mapping in flow style.

    `where` names the place in messages; by default `--set a.b=value`.
    """
    if where is None:
        where = given_by("--set", override)
    name, equals, text = override.partition("=")
    path = key_path(name)
    if not equals or not all(path):
        raise ScenarioError(f"{where}: must read key.key=value, such as engine.cache=session")
    put_value(document, path, parse(text, where, numbered=False).value, where)


def put_value(document: Document, path: tuple[str, ...], value: Any, where: str) -> None:
    """Set one value of a document; `where` names its place in messages. ScenarioError: its parent is no mapping."""
    target: Any = document.value
    for depth, part in enumerate(path):
        if not isinstance(target, dict):
            above = dotted(path[:depth]) or "the scenario"
            raise ScenarioError(f"{where}: {above} is {show(target)}, not a mapping; set {above} as a whole")
        if depth == len(path) - 1:
            target[part] = value
        else:
            target = target.setdefault(part, {})
        document.places.setdefault(path[: depth + 1], where)
    for known in [known for known in document.places if known[: len(path)] == path]:
        del document.places[known]
    document.places[path] = where
