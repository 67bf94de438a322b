# SPDX-License-Identifier: Apache-2.0
"""Hooks on SGLang: named methods, checked before they are wrapped.

SGLang's own `HookRegistry` logs a hook that does not apply and starts the server without it. A run that was not forced,
or not logged, must not look like one that was; so the plugin wraps the methods itself and raises on any difference
from the tested SGLang.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, NamedTuple

from sqreal.plugin.versions import TESTED_VERSIONS


class PluginError(Exception):
    """The plugin cannot do as asked here; the message names the fix."""


class Hook(NamedTuple):
    """Wrapper of one method of SGLang."""

    method: str
    """Its dotted path: module, class, name."""
    parameters: str
    """Its parameters in the installed version, separated by blanks; `*` precedes the keyword-only ones."""
    around: Callable[..., Any]
    """Called in its place as `around(original, self, ...)`."""


class Need(NamedTuple):
    """Names that a class of SGLang must have because hooks read them."""

    owner: str
    names: str
    """Separated by blanks: attributes of its instances, methods, fields."""


def check_version(installed: str) -> None:
    """Raise a PluginError when the plugin was not tested with this version of SGLang."""
    if installed not in TESTED_VERSIONS:
        tested = " or ".join(TESTED_VERSIONS)
        raise PluginError(
            f"tested with SGLang {tested}, found {installed}; pip install sglang=={TESTED_VERSIONS[-1]}"
        )


def faults(hooks: Iterable[Hook], needs: Iterable[Need]) -> list[str]:
    """List the differences from the tested SGLang; empty when there are none."""
    found = []
    for hook in hooks:
        try:
            owner, name, method = _resolve(hook.method)
        except (ImportError, AttributeError) as error:
            found.append(f"{hook.method}: not found ({error})")
            continue
        if name not in vars(owner):
            found.append(f"{hook.method}: now inherited")
        parameters = _parameters(method)
        if parameters != hook.parameters:
            found.append(f"{hook.method}: takes ({parameters}), not ({hook.parameters})")
    for need in needs:
        try:
            names = _names(pkgutil.resolve_name(need.owner))
        except (ImportError, AttributeError) as error:
            found.append(f"{need.owner}: not found ({error})")
            continue
        found.extend(f"{need.owner}: has no {name}" for name in need.names.split() if name not in names)
    return found


def install(hooks: Iterable[Hook], needs: Iterable[Need]) -> None:
    """Wrap the methods; a PluginError, with nothing wrapped, when SGLang differs from the tested one."""
    hooks = tuple(hooks)
    if found := faults(hooks, needs):
        raise PluginError("SGLang's internals differ from the tested ones: " + "; ".join(found))
    for hook in hooks:
        owner, name, method = _resolve(hook.method)
        wrapped = _wrapped(getattr(method, "__func__", method), hook.around)
        setattr(owner, name, classmethod(wrapped) if inspect.ismethod(method) else wrapped)


def _wrapped(original: Callable[..., Any], around: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return wrapper


def _resolve(path: str) -> tuple[type, str, Any]:
    """Resolve a dotted path to the class, the name and the method (bound, when it is a class method)."""
    owner_path, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    return owner, name, getattr(owner, name)


def _parameters(method: Any) -> str:
    words: list[str] = []
    for parameter in inspect.signature(getattr(method, "__func__", method)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(parameter.name)
    return " ".join(words)


def _names(owner: type) -> set[str]:
    """Collect every name that the class or its methods mention: renaming or removing an attribute removes it here."""
    names = set(dir(owner))
    for part in owner.__mro__:
        names.update(inspect.get_annotations(part))
        for member in vars(part).values():
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
            if inspect.isfunction(function):
                names.update(_mentioned(function.__code__))
    return names


def _mentioned(code: CodeType) -> set[str]:
    nested = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_mentioned, nested))
