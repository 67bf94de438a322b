"""The contract of a policy: at every boundary, which cursors to evict and whether to start an aux thread.

A policy is one class. Its fields are the keys that a scenario may set, its methods decide, and its properties state
what it needs. Override only what your policy does; the defaults do nothing. See CONTRIBUTING.md, "Add a policy".

A policy sees a `View`: what a server or an agent framework knows at that moment, and nothing of the future (law 4). A
policy that needs hindsight says so (`needs_references`) and is labelled (`hindsight`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from sqsim.base.part import FITS, AfterEviction, Cache, Part
from sqsim.errors import PolicyError
from sqsim.policies.definition import check, same
from sqsim.trace.schema import Task


class CursorView(NamedTuple):
    """An open tool response.

    `opened` is the turn whose call opened it, `tokens` its resident tokens, call and response together. `read_turn` is
    the main step that read it first; None: not read yet. `arguments` is the call as the model wrote it; None where the
    trace holds no text.
    """

    cursor: int
    opened: int
    tokens: int
    read_turn: int | None
    tool: str = ""
    arguments: str | None = None

    @property
    def read(self) -> bool:
        """Whether a main step has read it. Only what was read can be evicted."""
        return self.read_turn is not None


def unknown_usage() -> float:
    """Refuse to name a KV usage that nobody measures."""
    raise PolicyError(
        "view.kv_usage is not known: this view was made without a server; give View(..., measure=...) a function that tells it"
    )


class View(NamedTuple):
    """What a policy may know at the boundary before main step `turn`; `cursors` are open, oldest first."""

    turn: int
    context_tokens: int
    cursors: tuple[CursorView, ...]
    measure: Callable[[], float] = unknown_usage

    @property
    def kv_usage(self) -> float:
        """The part of the server's KV slots that is neither free nor evictable now (SGLang's `token_usage`), from 0 to 1.

        With replicas it is that of the server to which the task's next request would go; with two pools, of the fuller one.
        A real server is asked when a policy reads it. PolicyError: the view was made without a server.
        """
        return self.measure()


class Decision(NamedTuple):
    """The cursors that an aux thread names, in its order and each once; none where its output was malformed."""

    named: tuple[int, ...] = ()
    malformed: bool = False


class Script(NamedTuple):
    """What an aux thread will generate where its output is scripted."""

    output_tokens: int
    decision: Decision


class Decisions(Protocol):
    """Stands for the model's output on aux threads, which a simulation does not have."""

    def decide(self, index: int, turn: int, open_cursors: Iterable[int]) -> Script:
        """Decide for aux thread `index`, forked before main step `turn`, over the cursors open at its fork."""
        ...


class Gate(Protocol):
    """What the agents of one run pass at their boundaries. One agent always goes on, so a run always ends."""

    def ask(self, name: str, tokens: int, *, may_pause: bool = True) -> bool:
        """May an agent whose context has `tokens` go on? If not, it is paused now."""
        ...

    def leave(self, name: str) -> None:
        """Forget an agent, which has ended."""
        ...

    def resume(self) -> list[str]:
        """Let paused agents go on; their names, in order."""
        ...


class AuxOptions(NamedTuple):
    """What an aux thread's request declares, and when it starts."""

    max_new_tokens: int = 0
    start: Literal["after_main_prefill", "with_main"] = "after_main_prefill"


class Choice(NamedTuple):
    """A setting that `sqsim plan` and `sqsim region` try. `free`: it needs no trained model and no patched server."""

    name: str
    cache: Cache
    keys: dict[str, Any]
    free: bool = True
    note: str = ""


class Policy(Part):
    """Asked at every boundary, `evict` first (law 9). One object holds for all tasks of a run.

    A policy that remembers something keeps it in a pydantic `PrivateAttr`; then each task has a copy of its own.
    """

    name: str

    hindsight: ClassVar[bool] = False
    """Whether it is a bound that no server can run."""
    labelled: ClassVar[tuple[str, ...]] = ()
    """Keys by which tables of runs are sorted and named."""
    assumed: ClassVar[tuple[str, ...]] = ()
    """Keys whose values no record has calibrated."""

    # What it does.

    def evict(self, view: View) -> Sequence[int]:  # noqa: ARG002 - the contract's signature
        """Cursors to evict now; open ones that were read."""
        return ()

    def spawn_aux(self, view: View) -> bool:  # noqa: ARG002 - the contract's signature
        """Start an aux thread now? Asked only while none is alive."""
        return False

    def summarise(self, view: View) -> int:  # noqa: ARG002 - the contract's signature
        """Tokens of a summary to write now in place of all that was read; 0: none. The main step waits for it."""
        return 0

    def gate(self, capacity_tokens: int) -> Gate | None:  # noqa: ARG002 - the contract's signature
        """Build the gate of one run, where agents pause; `capacity_tokens`: KV slots of all its servers."""
        return None

    def scripted(self, task: Task, name: str, seed: int) -> Decisions | None:  # noqa: ARG002 - the same
        """Build what decides on the aux threads of one task; None where the server's model writes them.

        It stands for a model that reads the context, so it may read `task`; draws are keyed by `seed` and `name`.
        """
        return None

    def with_hindsight(self, task: Task) -> Policy:  # noqa: ARG002 - the same
        """Build the policy of one task from its future. Called only where the policy `needs_references`."""
        return self

    # What it needs.

    @property
    def hold_s(self) -> float:
        """For so many seconds after a turn the server keeps a task's idle session, whatever the pressure."""
        return 0.0

    @property
    def needs_references(self) -> bool:
        """Whether traces must say when each response is used."""
        return False

    @property
    def needs_sessions(self) -> bool:
        """Whether it runs only with engine.cache session."""
        return False

    @property
    def runs_live(self) -> bool:
        """Whether the model of a real server writes the aux threads."""
        return False

    @property
    def aux(self) -> AuxOptions:
        """What aux threads and summaries declare."""
        return AuxOptions()

    @property
    def not_calibrated(self) -> tuple[str, ...]:
        """Keys in use whose values no record has calibrated."""
        return self.assumed

    # What follows from it.

    @property
    def follows_eviction(self) -> AfterEviction | None:
        """What follows an eviction: its key `after_eviction`; None where it has none, as it evicts nothing."""
        found: AfterEviction | None = getattr(self, "after_eviction", None)
        return found

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:  # noqa: ARG003 - the contract's signature
        """Settings to try in a plan or a region; with no override, its defaults. `ks`: intervals of aux threads."""
        policy = cls()  # type: ignore[call-arg]  # a subclass has a default for every key
        after = policy.follows_eviction
        cache: Cache = "session" if policy.needs_sessions or after == FITS["session"] else "radix"
        free = after != "in_place" and not (cls.overrides("spawn_aux") or cls.hindsight)
        keys = {} if after is None else {"after_eviction": after}
        return [Choice(policy.name if after is None else f"{policy.name} / {after}", cache, keys, free)]

    @classmethod
    def overrides(cls, *names: str) -> bool:
        """Whether this class says anything of its own about one of these."""
        return any(not same(cls, Policy, name) for name in names)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        check(cls)
