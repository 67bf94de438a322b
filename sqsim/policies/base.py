# SPDX-License-Identifier: Apache-2.0
"""The contract of a policy, which decides at every boundary what to evict and whether to start an aux thread.

A policy is one class. Its fields are the keys that a scenario may set, its methods decide, and its properties state
its needs. Override only what your policy does; the defaults do nothing. See CONTRIBUTING.md, "Add a policy".

A policy sees a `View`: the state that a server or an agent framework knows at that moment, and nothing of the future
(law 4). A policy that needs hindsight declares it (`needs_references`) and is labelled (`hindsight`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import ConfigDict, PydanticUndefinedAnnotation, PydanticUserError, model_validator

from sqsim.base.checked import CheckedType
from sqsim.base.part import FITS, AfterEviction, Cache, Part
from sqsim.errors import PolicyError
from sqsim.policies.contract.asking import made, told
from sqsim.policies.contract.definition import check, same
from sqsim.policies.contract.keys import as_tuples
from sqsim.trace.schema import Task


class CursorView(NamedTuple):
    """An open tool response.

    `opened`: the turn whose call opened it. `tokens`: its resident tokens, call and response together. `read_turn`: the
    main step that read it first; None: no step has read it yet. `arguments`: the call as the model wrote it; None where
    the trace holds no text.
    """

    cursor: int
    opened: int
    tokens: int
    read_turn: int | None
    tool: str = ""
    arguments: str | None = None

    @property
    def read(self) -> bool:
        """Whether a main step has read the response. Only a response that was read can be evicted."""
        return self.read_turn is not None


def unknown_usage() -> float:
    """Raise a PolicyError, as a view without a server has no KV usage."""
    raise PolicyError(
        "view.kv_usage is not known: this view was made without a server; pass View(..., measure=...) a function that returns it"
    )


class View(NamedTuple):
    """The state that a policy may know at the boundary before main step `turn`; open `cursors`, oldest first."""

    turn: int
    context_tokens: int
    cursors: tuple[CursorView, ...]
    measure: Callable[[], float] = unknown_usage

    @property
    def kv_usage(self) -> float:
        """Share of the server's KV slots that are neither free nor evictable now (SGLang's `token_usage`), from 0 to 1.

        With replicas: of the replica that would get the task's next request; with two pools: of the fuller one. Each
        reading asks the server. PolicyError: the view was made without a server.
        """
        return self.measure()


class Decision(NamedTuple):
    """The cursors that an aux thread names, in its order, each once; none where its output is malformed."""

    named: tuple[int, ...] = ()
    malformed: bool = False


class Script(NamedTuple):
    """The scripted output of an aux thread: its length and its decision."""

    output_tokens: int
    decision: Decision


class Decisions(Protocol):
    """A stand-in for the model that writes the output of aux threads, as a simulation runs no model."""

    def decide(self, index: int, turn: int, open_cursors: Iterable[int]) -> Script:
        """Script aux thread `index`, forked before main step `turn`, over the cursors open at its fork."""
        ...


class Gate(Protocol):
    """A gate that the agents of one run pass at their boundaries. One agent always continues, so a run always ends."""

    def ask(self, name: str, tokens: int, *, may_pause: bool = True) -> bool:
        """Let an agent with a context of `tokens` go on (True), or pause it now (False)."""
        ...

    def leave(self, name: str) -> None:
        """Forget an agent that has ended."""
        ...

    def resume(self) -> list[str]:
        """Let paused agents go on; returns their names, in order."""
        ...


class AuxOptions(NamedTuple):
    """Options of an aux thread's request: the output tokens it declares, and when it starts."""

    max_new_tokens: int = 0
    start: Literal["after_main_prefill", "with_main"] = "after_main_prefill"


class Choice(NamedTuple):
    """A setting that `sqsim plan` and `sqsim region` try. `free`: runs without a trained model or a patched server."""

    name: str
    cache: Cache
    keys: dict[str, Any]
    free: bool = True
    note: str = ""


class PolicyType(CheckedType):
    """Metaclass that raises a PolicyError where a policy's class, or an object of it, cannot be made."""

    if not TYPE_CHECKING:  # a type checker reads both from pydantic's class and the fields

        def __new__(mcs, name, bases, content, **words):  # noqa: ANN001, ANN003, ANN204 - as ModelMetaclass has them
            try:
                return super().__new__(mcs, name, bases, content, **words)
            except (PydanticUserError, PydanticUndefinedAnnotation) as error:
                where = f"policy class {content.get('__module__')}.{content.get('__qualname__', name)}"
                raise PolicyError(f"{where}: {told(error)}; repair the class") from error

        def __call__(cls, *args, **values):  # noqa: ANN002, ANN003, ANN204, N805 - of a metaclass
            return made(cls, lambda: super(PolicyType, cls).__call__(*args, **values))


class Policy(Part, metaclass=PolicyType):
    """Base of every policy; the turn loop asks it at every boundary, `evict` first (law 9).

    One object serves all tasks of a run. A policy that keeps state declares it as a pydantic `PrivateAttr`; then each
    task gets a copy of the object.
    """

    # A default is no exception: it is checked as a value that a scenario sets.
    model_config = ConfigDict(validate_default=True, allow_inf_nan=False)

    name: str

    hindsight: ClassVar[bool] = False
    """Whether the policy is a bound that no server can run."""
    labelled: ClassVar[tuple[str, ...]] = ()
    """Keys that sort and name the runs in tables."""
    assumed: ClassVar[tuple[str, ...]] = ()
    """Keys whose values no record has calibrated."""

    # Behaviour.

    def evict(self, view: View) -> Sequence[int]:  # noqa: ARG002 - the contract's signature
        """Choose the cursors to evict now, among the open ones that were read."""
        return ()

    def spawn_aux(self, view: View) -> bool:  # noqa: ARG002 - the contract's signature
        """Decide whether to start an aux thread now; asked only while none is alive."""
        return False

    def summarise(self, view: View) -> int:  # noqa: ARG002 - the contract's signature
        """Choose the tokens of a summary that replaces all that was read; 0: none. The main step waits for it."""
        return 0

    def gate(self, capacity_tokens: int) -> Gate | None:  # noqa: ARG002 - the contract's signature
        """Build the gate of one run; None: agents never pause. `capacity_tokens`: KV slots of all servers together."""
        return None

    def scripted(self, task: Task, name: str, seed: int) -> Decisions | None:  # noqa: ARG002 - the same
        """Build the decision model for the aux threads of one task; None where the server's model writes them.

        It stands for a model that reads the context, so it may read `task`; key its random numbers by `seed` and `name`.
        """
        return None

    def with_hindsight(self, task: Task) -> Policy:  # noqa: ARG002 - the same
        """Build the policy of one task from the task's future. Called only where the policy `needs_references`."""
        return self

    # Needs.

    @property
    def hold_s(self) -> float:
        """Seconds after a turn for which the server keeps the task's idle session, whatever the pressure."""
        return 0.0

    @property
    def needs_references(self) -> bool:
        """Whether the policy needs traces that state when each response is used."""
        return False

    @property
    def needs_sessions(self) -> bool:
        """Whether the policy runs only with engine.cache session."""
        return False

    @property
    def runs_live(self) -> bool:
        """Whether the model of a real server writes the aux threads."""
        return False

    @property
    def aux(self) -> AuxOptions:
        """Options of the requests for aux threads and summaries."""
        return AuxOptions()

    @property
    def not_calibrated(self) -> tuple[str, ...]:
        """Keys in use whose values no record has calibrated."""
        return self.assumed

    # Derived.

    @property
    def follows_eviction(self) -> AfterEviction | None:
        """Value of the key `after_eviction`; None where the policy has no such key, as it evicts nothing."""
        found: AfterEviction | None = getattr(self, "after_eviction", None)
        return found

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        """List the settings that a plan or a region tries; by default the keys' defaults. `ks`: intervals of aux threads."""
        policy = cls()  # type: ignore[call-arg]  # a subclass has a default for every key
        after = policy.follows_eviction
        cache: Cache = "session" if policy.needs_sessions or after == FITS["session"] else "radix"
        free = after != "in_place" and not (cls.overrides("spawn_aux") or cls.hindsight)
        keys = {} if after is None else {"after_eviction": after}
        return [Choice(policy.name if after is None else f"{policy.name} / {after}", cache, keys, free)]

    @classmethod
    def overrides(cls, *names: str) -> bool:
        """Whether this class overrides one of these members of `Policy`."""
        return any(not same(cls, Policy, name) for name in names)

    @model_validator(mode="before")
    @classmethod
    def _as_tuples(cls, values: Any) -> Any:
        """Read a list of a file as the tuple that a key declares, as keys cannot change."""
        return as_tuples(cls, values) if isinstance(values, dict) else values

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        check(cls)
