# SPDX-License-Identifier: Apache-2.0
"""A scenario: traces, model, engine, load and policy of a run. SPEC.md is the contract.

`load_scenario` reads the strict YAML. Every fault is a ScenarioError, one line a fault:
`FILE:LINE: key.path: value and what is wrong with it; what is allowed`.

A scenario keeps file names as the YAML states them, so a record does not depend on where a checkout lies;
`trace_paths`, `model_path` and `profile` resolve those names relative to the scenario's file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Unpack

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sqsim.base.given_path import given_path
from sqsim.base.part import FITS, AfterEviction, Count, Name, Part, Word, conflict
from sqsim.base.strict_yaml import Document, KeyPath, key_path, parse, put_value, set_value, show
from sqsim.errors import InputError, PolicyError, ScenarioError, TraceError
from sqsim.policies.base import Policy
from sqsim.policies.contract.definition import check_needs
from sqsim.policies.none import NoEviction
from sqsim.policies.registry import BUILT_IN, POLICIES, registered
from sqsim.scenario.engine import Engine, Router
from sqsim.scenario.explain import refusal
from sqsim.scenario.load import ClosedLoad, Load

if TYPE_CHECKING:
    from sqsim.scenario.keys import ScenarioChanges, ScenarioKeys


def _as_tuple(value: Any) -> Any:
    """Turn one trace or several into a tuple of names; from Python they may be paths."""
    names = (
        value if isinstance(value, list | tuple) else (value,) if isinstance(value, str | PathLike) else None
    )
    return value if names is None else tuple(fspath(n) if isinstance(n, PathLike) else n for n in names)


def _own(key: str, value: Any) -> Any:
    """Copy a value, so that a later change to it does not reach the scenario. ScenarioError: it cannot be copied."""
    if isinstance(value, Part):
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:  # anything may be given, and its own code copies it
        raise ScenarioError(
            f"with_: {key}: {type(value).__name__} is no plain value; give a text, number, list or mapping"
        ) from error


def _as_given(part: Part) -> dict[str, Any]:
    """Write a part as a file would: the keys that were set, and the key that names its kind even where it is a default."""
    tags: dict[str, Any] = {
        key: getattr(part, key) for key in ("name", "concurrency") if key in type(part).model_fields
    }
    content = {**tags, **part.model_dump(mode="json", exclude_unset=True)}
    if isinstance(part, Engine) and not part.swa_pool:  # the engine itself set the only ratio that fits
        content.pop("swa_full_tokens_ratio", None)
    return content


def _read_policy(value: Any) -> Policy:
    """Build a policy from a mapping that names it, or check one given as an object."""
    if isinstance(value, Policy):
        registered(value)
        check_needs(value)
        return value
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in POLICIES:
        raise PydanticCustomError("choice", "no choice")
    policy = POLICIES[name].model_validate(value)
    check_needs(policy)
    return policy


class _Places(dict[KeyPath, str]):
    """The place where each key was set. Any two are equal, because places do not make scenarios differ."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Places)

    __hash__ = None


class Scenario(Part):
    """Everything that decides a run: `Scenario(traces="tasks.jsonl", engine={"cache": "session"}, seed=1)`.

    A key takes the value that a file takes, or a part as an object (`Engine(...)`); traces may be paths. Relative paths
    are relative to the working directory. ScenarioError: one line a fault, as for a file.
    """

    traces: Annotated[tuple[Name, ...], Field(min_length=1), BeforeValidator(_as_tuple)] = Field(
        description="a trace file, or a list of at least one"
    )
    tasks: Annotated[Count | None, Word("all")] = Field(
        default=None, description="all, or a number of tasks, at least 1"
    )
    resample: bool = Field(default=False, description="true: `tasks` tasks drawn with replacement; or false")
    model: Name = Field(
        default="gpt-oss-20b", description="a model that `sqsim support` lists, or the path of a config.json"
    )
    engine: Engine = Field(default_factory=Engine, description="a mapping of engine settings")
    replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="engines of this kind behind a router, from 1 to 10000"
    )
    router: Router = Field(
        default="session_affinity",
        description="session_affinity, round_robin or least_loaded: where a task's requests go",
    )
    load: Load = Field(
        default_factory=ClosedLoad,
        description="exactly one of {concurrency: 24}, {rate_per_s: 0.2, arrivals: poisson}, {as_recorded: true, speedup: 1}",
    )
    policy: Annotated[SerializeAsAny[Policy], PlainValidator(_read_policy)] = Field(
        default_factory=NoEviction,
        description=f"a mapping with a name: {', '.join(BUILT_IN)}; such as {{name: none}}",
    )
    apply: Literal["boundary", "turn_end"] = Field(default="boundary", description="boundary or turn_end")
    max_turns: Annotated[Count | None, Word("none")] = Field(
        default=None, description="none, or a number of turns, at least 1"
    )
    tool_wait_cap_s: Annotated[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, Word("none")] = Field(
        default=None, description="none, or the longest wait for tools in seconds, 0 or more"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="a whole number, 0 or more")

    if TYPE_CHECKING:  # the constructor takes more types than the fields keep

        def __init__(self, **keys: Unpack[ScenarioKeys]) -> None: ...

    _base: Path = PrivateAttr(default_factory=Path)
    _places: _Places = PrivateAttr(default_factory=_Places)

    @model_validator(mode="after")
    def _exists(self) -> Scenario:
        cache, after = self.engine.cache, self.after_eviction
        if after is not None and after != FITS[cache]:
            other = next(name for name, fit in FITS.items() if fit == after)
            raise conflict(
                "policy.after_eviction",
                f"{after!r} does not exist with engine.cache {cache!r}",
                f"set engine.cache: {other}, or policy.after_eviction: {FITS[cache]}",
            )
        if self.policy.needs_sessions and cache != "session":
            does = "pins" if self.policy.overrides("hold_s") else "needs"
            raise conflict(
                "policy.name",
                f"{self.policy.name} {does} sessions, and engine.cache {cache!r} has none",
                "set engine.cache: session, or another policy",
            )
        if self.replicas > 1 and self.router != "session_affinity" and cache == "session":
            raise conflict(
                "router",
                f"{self.router!r} tears sessions apart, which engine.cache {cache!r} keeps on one replica",
                "set router: session_affinity, or engine.cache: radix",
            )
        if self.resample and self.tasks is None:
            raise conflict(
                "resample", "how many tasks to draw is not said", "set tasks to a number, or resample: false"
            )
        return self

    @property
    def after_eviction(self) -> AfterEviction | None:
        """How the server clears evicted tokens; None where the policy never evicts."""
        return self.policy.follows_eviction

    @property
    def trace_paths(self) -> tuple[Path, ...]:
        """Paths of the trace files; a relative name is relative to the scenario's file."""
        return tuple(self._base / name for name in self.traces)

    @property
    def model_path(self) -> Path | None:
        """Path of the config.json that `model` names; None for the name of a known model."""
        return self._base / self.model if self.model.endswith(".json") else None

    @property
    def profile(self) -> str:
        """The cost profile: `auto`, a name, or a path; a relative path is relative to the scenario's file."""
        name = self.engine.profile or "auto"
        return str(self._base / name) if name.endswith((".yaml", ".yml")) else name

    @property
    def kernel_costs(self) -> str | None:
        """The record of benchmarks/gpu/kernels.py; None for auto. A relative path is relative to the scenario's file."""
        name = self.engine.kernel_costs
        return None if name is None else str(self._base / name)

    @contextmanager
    def blamed(self, key: str) -> Iterator[None]:
        """Blame this key for any InputError of the body: the ScenarioError names the key and its place."""
        try:
            yield
        except TraceError:
            raise  # it already names the trace file and the line
        except InputError as error:
            known = Document(None, {(): "scenario", **self._places})
            raise ScenarioError(f"{known.place(tuple(key.split('.')))}: {key}: {error}") from error

    def with_(self, changes: Mapping[str, Any] | None = None, /, **keys: Unpack[ScenarioChanges]) -> Scenario:
        """Derive a scenario: `with_({"load.concurrency": 8, "policy.n": 2}, seed=1)`.

        A dotted key changes one value, as `--set` does; a whole key replaces its part. Keys that were never set take
        their defaults again. ScenarioError as for a file.
        """
        document = Document(self._given(), {(): "scenario", **self._places})
        if not isinstance(changes, Mapping | None):
            raise ScenarioError(
                f"with_: {show(changes)} is no mapping; give one such as {{'load.concurrency': 8}}"
            )
        for key, value in (*keys.items(), *(changes or {}).items()):  # a dotted key may be of a part given here
            if not isinstance(key, str) or not all(path := key_path(key)):
                raise ScenarioError(f"with_: {show(key)} is no key of a scenario, such as 'load.concurrency'")
            above = document.value.get(path[0])
            if len(path) > 1 and isinstance(above, Part):
                document.value[path[0]] = _as_given(above)
            put_value(document, path, _own(key, value), "with_")
        return _checked(document, self._base)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Scenario:
        """Copy the scenario; with `update` this is `with_(update)`."""
        return super().model_copy(deep=deep) if update is None else self.with_(update)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Build a scenario from a mapping; ScenarioError: one line a fault, as for a file."""
        try:
            return cls._validated(obj, **options)
        except ValidationError as error:
            if not isinstance(obj, Mapping):
                raise ScenarioError(
                    f"a scenario is a mapping such as {{'traces': 'tasks.jsonl'}}, not {show(obj)}"
                ) from None
            raise cls._refused(obj, error) from None

    @classmethod
    def _validated(cls, obj: Any, **options: Any) -> Self:
        """Build a scenario with pydantic's own error, whose faults `refusal` gives their places."""
        return super().model_validate(obj, **options)

    def _given(self) -> dict[str, Any]:
        """Return the keys that were set, as a file would have them; parts stay objects."""
        content = self.model_dump(mode="json", exclude_unset=True)
        return content | {key: getattr(self, key) for key in content.keys() & {"engine", "load", "policy"}}

    @classmethod
    def _refused(cls, values: Mapping[str, Any], error: ValidationError) -> ScenarioError:
        return refusal(cls, Document(dict(values), {(): "scenario"}), error)

    def __repr__(self) -> str:
        load = ", ".join(f"{key} {value}" for key, value in self.load.model_dump(mode="json").items())
        tasks = "all tasks" if self.tasks is None else f"{self.tasks} tasks"
        return (
            f"<Scenario {self.policy.name} / {self.engine.cache}, {self.model} on {self.engine.gpu}, {load}, "
            f"{tasks} of {', '.join(self.traces)}>"
        )

    __str__ = __repr__

    def resolved(self) -> dict[str, Any]:
        """Return every key with its default, as JSON. Reading it back gives this scenario."""
        content = self.model_dump(mode="json")
        if self.replicas == 1:  # one engine needs no router: leave out both keys
            del content["replicas"], content["router"]
        return content

    def assumed(self) -> list[str]:
        """List the key paths of values in use that no record has calibrated yet (SPEC.md, "Policies")."""
        return [f"policy.{name}" for name in self.policy.not_calibrated]


def load_scenario(
    path: str | Path, overrides: Sequence[str] = (), places: Sequence[str] | None = None
) -> Scenario:
    """Read a scenario file and apply `a.b=value` overrides (each value is YAML) in order.

    `places` name the overrides in messages, where they do not come from `--set`.
    """
    fix = "give the path of a scenario's YAML file"
    file = given_path(path, ScenarioError, fix)
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise ScenarioError(f"overrides: {show(overrides)} is no list of texts; give one such as ['seed=1']")
    for each in overrides:
        if not isinstance(each, str):
            raise ScenarioError(f"overrides: {show(each)} is no text; give key.key=value, such as 'seed=1'")
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read: {error.strerror}; {fix}") from error
    return _build(parse(text, str(file)), overrides, file.parent, places)


def make_scenario(
    content: Mapping[str, Any], overrides: Sequence[str] = (), base: Path | None = None, where: str = "scenario"
) -> Scenario:
    """Build a scenario from values, checked as a file is; relative paths are relative to `base`."""
    return _build(Document(copy.deepcopy(dict(content)), {(): where}), overrides, base or Path())


def _build(
    document: Document, overrides: Sequence[str], base: Path, places: Sequence[str] | None = None
) -> Scenario:
    if not isinstance(document.value, dict):
        where, value = document.place(()), show(document.value)
        raise ScenarioError(f"{where}: a scenario is a mapping such as `traces: tasks.jsonl`, not {value}")
    for index, override in enumerate(overrides):
        set_value(document, override, None if places is None else places[index])
    return _checked(document, base)


def _checked(document: Document, base: Path) -> Scenario:
    try:
        scenario = Scenario._validated(document.value)  # noqa: SLF001 - of the same module
    except ValidationError as error:
        raise refusal(Scenario, document, error) from None
    except PolicyError as error:
        raise ScenarioError(f"{document.place(('policy', 'name'))}: policy.name: {error}") from error
    # Private attributes, set by the same module: the origin of a scenario is not one of its fields.
    scenario._base = base  # noqa: SLF001
    scenario._places = _Places(document.places)  # noqa: SLF001
    return scenario
