# SPDX-License-Identifier: Apache-2.0
"""Streaming sessions, in which a conversation keeps its row between turns (rule 36), with the plugin's additions.

A session holds a row from its first turn's first allocation until it closes. It is *busy* while a turn runs on the
row, else *idle*. SGLang pins idle sessions. The plugin can *release* them, *drop* spans of them in place, and lets an
aux request *fork* them: a fork reads the row up to a point and owns only the tokens that it adds after it. A fork
holds a reference from its admission until it ends or is retracted; meanwhile the session is neither dropped nor
released. If the session is closed, aborted or retracted meanwhile, the part that its forks read stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqsim.models.serving.pool import Pool, Row
from sqsim.models.serving.radix import RadixTree
from sqsim.models.serving.request import Request
from sqsim.models.serving.tokens import Tokens, common_prefix, concat, split


@dataclass(slots=True, eq=False)
class Session:
    """A session that holds a row. `content`: the tokens in the row, and those that its turn is about to add."""

    name: str
    row: Row
    content: Tokens
    publishes: bool  # its running (first) turn still puts its prompt into the tree
    turn: Request | None  # the turn that runs on the row
    shift: int = 0  # tokens dropped from the row; positions still count them
    forks: list[Request] = field(default_factory=list)  # aux requests that read the row

    def holds(self, context: Tokens, tokens: int) -> int:
        """Count how many of the first `tokens` tokens of a context the row has."""
        return min(tokens, self.row.length, common_prefix(self.content, context))


class Sessions:
    """All sessions by name, and the turns and forks that wait for or run on them."""

    def __init__(self, pool: Pool, tree: RadixTree) -> None:
        self._pool, self._tree = pool, tree
        self._slots: dict[str, Session] = {}
        self._idle: dict[str, Session] = {}  # least recently used first
        self._turns: dict[str, Request] = {}  # the unfinished turn of each session, waiting or running
        self._forks: dict[str, list[Request]] = {}  # the unfinished forks of each session, waiting or running
        self._closing: set[str] = set()  # closed while a turn was unfinished
        self._announced: dict[str, int] = {}  # tokens that a fork of the unfinished turn is going to read
        self.closed: list[Session] = []  # closed, or lost by their turn, while a fork was reading
        self._publish: dict[
            str, int | None
        ] = {}  # tokens of the prompt that a session may publish, from its first turn
        self.idle_tokens = 0  # slots that rows of idle sessions own
        self._pinned: set[str] = set()  # idle sessions that must not be released

    # Turns.

    def expect(self, request: Request) -> None:
        """Register a submitted turn or fork."""
        name = request.asked.session
        assert name is not None
        if request.asked.role == "aux":
            self._forks.setdefault(name, []).append(request)
            self._announced.pop(name, None)
            return
        assert name not in self._turns, f"session {name} has the unfinished turn {self._turns[name].asked.rid}"
        self._turns[name] = request
        if request.asked.forked is not None:
            self._announced[name] = request.asked.forked
        if request.asked.publish_tokens is not None or name not in self._publish:
            self._publish[name] = request.asked.publish_tokens

    def get(self, name: str | None) -> Session | None:
        """Find the session of this name that holds a row."""
        return None if name is None else self._slots.get(name)

    def lend(self, session: Session, request: Request) -> int:
        """Return the tokens of the row that the next turn continues from, and free the slots after them (rule 36)."""
        row = session.row
        prefix = min(row.length, request.known - 1)
        assert session.holds(request.context, prefix) == prefix, (
            f"turn {request.asked.rid} does not continue session {session.name}: of {prefix} tokens it repeats "
            f"{session.holds(request.context, prefix)}"
        )
        if prefix < row.length:
            before = self._pool.owned(row)
            if self._pool.page > 1 and row.slid > prefix:
                prefix = self._pool.floor(prefix)
            self._pool.trim(row, prefix)
            self.idle_tokens -= before - self._pool.owned(row)
        return prefix

    def resume(self, session: Session, request: Request) -> None:
        """Make the session busy with a later turn that was admitted."""
        self._wake(session)
        session.turn, session.content = request, request.context

    def start(self, request: Request) -> None:
        """Open the session with the row of its first turn, which now gets its slots."""
        assert request.asked.session is not None
        assert request.row is not None
        assert request.asked.session not in self._slots, f"session {request.asked.session} has a row already"
        session = Session(request.asked.session, request.row, request.context, publishes=True, turn=request)
        self._slots[session.name] = request.lender = session

    def shift(self, name: str | None) -> int:
        """Return the tokens dropped from a session's row, 0 without a row; positions still count them."""
        session = self.get(name)
        return 0 if session is None else session.shift

    def publish_limit(self, request: Request) -> int | None:
        """Return the tokens of its prompt that a turn may publish; None: all of them."""
        return None if request.asked.session is None else self._publish.get(request.asked.session)

    def keep(self, session: Session, length: int) -> None:
        """Keep the row of a turn that ended or was retracted, cut to `length` tokens."""
        row = session.row
        if row.length > length:
            if self._pool.page > 1 and row.slid > length:
                length = self._pool.floor(length)
            self._pool.trim(row, length)
        session.content = split(session.content, row.length)[0]
        session.publishes, session.turn = False, None
        self._rest(session)

    def lose(self, session: Session) -> bool:
        """Take the row from a session whose turn lost its KV (abort; retraction with the plugin).

        Returns True if no fork reads the row; the caller then frees it.
        """
        session.publishes, session.turn = False, None
        del self._slots[session.name]
        if session.forks:
            self._leave(session)
        return not session.forks

    def finish(self, request: Request) -> None:
        """Unregister a turn or fork that has ended, and carry out a close that waited for it."""
        name = request.asked.session
        assert name is not None
        if request.asked.role == "aux":
            forks = self._forks[name]
            forks.remove(request)
            if not forks:
                del self._forks[name]
            return
        del self._turns[name]
        self._announced.pop(name, None)
        if name in self._closing:
            self._closing.remove(name)
            self.close(name)

    # Forks.

    def readable(self, request: Request) -> int:
        """Count the tokens of the session's row that a fork can read: whole pages, with a live window before their end."""
        session = self.get(request.asked.session)
        if session is None or request.asked.fork_tokens is None:
            return 0
        row = session.row
        tokens = session.holds(request.context, min(request.asked.fork_tokens, request.known - 1))
        if session.publishes and row.shared < self._pool.floor(self._published(session)):
            tokens = min(tokens, row.shared)  # publishing may still replace the row's own slots by others
        tokens = self._pool.floor(tokens)
        if self._pool.hybrid:
            unread = max(tokens - self._pool.window, row.shared)
            if tokens < row.shared or row.slid > unread:
                return 0
        return tokens

    def fork(self, session: Session, request: Request) -> None:
        """Note an admitted fork as a reader of the session."""
        session.forks.append(request)

    def unfork(self, request: Request) -> None:
        """Remove a fork that gave up its KV: it ended, was aborted or retracted."""
        session = request.lender
        assert session is not None
        session.forks.remove(request)
        request.lender = None
        if not session.forks and session in self.closed:
            self.closed.remove(session)
            self._free(session)

    def window_floor(self, name: str) -> int | None:
        """Find the lowest position whose window slots a fork of this session needs: admitted, waiting or announced."""
        reads = [fork.asked.fork_tokens or 0 for fork in self._forks.get(name, ())]
        if (
            name in self._slots
        ):  # an admitted fork reads the tokens that the row held then, possibly fewer than it asked for
            reads += [fork.row.shared for fork in self._slots[name].forks if fork.row is not None]
        if name in self._announced:
            reads.append(self._announced[name])
        return max(0, min(reads) - self._pool.window) if reads else None

    # Between turns.

    def close(self, name: str) -> None:
        """Free the session, at once or when its unfinished turn (SGLang) and its forks (the plugin) have ended."""
        if name in self._turns:
            self._closing.add(name)
            return
        self._publish.pop(name, None)
        session = self._slots.pop(name, None)
        if session is None:
            return
        self._wake(session)
        if session.forks:
            self._leave(session)
        else:
            self._free(session)

    def releasable(self, spare: Request | None = None) -> list[Session]:
        """List idle sessions without forks and pins, least recently used first, except the session of `spare`."""
        own = None if spare is None else spare.asked.session
        idle = [session for session in self._idle.values() if not session.forks and session.name != own]
        return [session for session in idle if session.name not in self._pinned] if self._pinned else idle

    def pin(self, name: str) -> None:
        """Protect an idle session from release until `unpin`, or until its next turn is admitted."""
        if name in self._idle:
            self._pinned.add(name)

    def unpin(self, name: str) -> None:
        """Allow a session to be released again."""
        self._pinned.discard(name)

    @property
    def pins(self) -> int:
        """Number of pinned sessions."""
        return len(self._pinned)

    def release(self, session: Session) -> None:
        """Free an idle session's KV; its next turn starts anew."""
        self._wake(session)
        del self._slots[session.name]
        self._free(session)

    def drop(self, name: str, spans: Sequence[tuple[int, int]]) -> int:
        """Cut spans [start, stop) out of an idle session's row in place; returns the tokens freed.

        Full-attention slots are freed at once; of the window slots only those that are still live.
        """
        session = self._slots.get(name)
        if session is None or not spans:
            return 0
        row, page = session.row, self._pool.page
        assert name not in self._turns, f"drop in session {name} during a turn"
        assert not session.forks, f"drop in session {name} while a fork reads it"
        stop = row.shared
        for span in spans:
            assert stop <= span[0], f"drop in session {name}: {span} is unsorted, overlaps, or is tree-owned"
            assert span[0] < span[1], f"drop in session {name}: {span} is empty"
            assert span[0] % page == span[1] % page == 0, (
                f"drop in session {name}: {span} cuts a page of {page}"
            )
            stop = span[1]
        assert stop <= row.length, f"drop in session {name}: {stop} lies beyond its {row.length} tokens"
        tokens = sum(stop - start for start, stop in spans)
        slid = sum(max(0, min(stop, row.slid) - start) for start, stop in spans)
        self._pool.give(tokens, tokens - slid)
        row.length -= tokens
        row.slid -= slid
        session.shift += tokens
        self.idle_tokens -= tokens
        kept = []
        for start, stop in reversed(spans):
            rest, after = split(session.content, stop)
            session.content = split(rest, start)[0]
            kept.append(after)
        session.content = concat(session.content, *reversed(kept))
        return tokens

    def rows(self) -> list[Row]:
        """List the rows of all sessions, closed ones included."""
        return [session.row for session in (*self._slots.values(), *self.closed)]

    def named_rows(self) -> dict[str, Row]:
        """Return the rows of the open sessions by name."""
        return {name: session.row for name, session in self._slots.items()}

    def closed_tokens(self) -> int:
        """Count the slots of closed sessions that forks still read."""
        return sum(self._pool.owned(session.row) for session in self.closed)

    def check(self) -> None:
        """Assert the invariants that hold between any two events."""
        for name, session in self._slots.items():
            assert session.name == name
            assert (name in self._idle) == (session.turn is None), f"session {name} is neither idle nor busy"
            assert session.turn is None or session.turn.row is session.row, (
                f"turn of {name} runs on another row"
            )
            assert all(fork.lender is session for fork in session.forks), (
                f"fork of {name} reads another session"
            )
        idle = sum(self._pool.owned(session.row) for session in self._idle.values())
        assert idle == self.idle_tokens, f"idle sessions own {idle} slots, counted {self.idle_tokens}"
        assert all(session.forks for session in self.closed), "a closed session outlived its forks"

    def _published(self, session: Session) -> int:
        """Count the tokens of a running first turn that go into the tree."""
        assert session.turn is not None
        limit = self._publish.get(session.name)
        return session.turn.n_in if limit is None else limit

    def _leave(self, session: Session) -> None:
        """Cut the row of a session that no turn continues to the part that its forks read."""
        row = session.row
        self._pool.trim(
            row, max(row.shared, *(fork.row.shared for fork in session.forks if fork.row is not None))
        )
        self.closed.append(session)

    def _rest(self, session: Session) -> None:
        self._idle[session.name] = session
        self.idle_tokens += self._pool.owned(session.row)

    def _wake(self, session: Session) -> None:
        del self._idle[session.name]
        self._pinned.discard(session.name)
        self.idle_tokens -= self._pool.owned(session.row)

    def _free(self, session: Session) -> None:
        self._pool.release(session.row)
        if session.row.lock is not None:
            self._tree.unlock(session.row.lock)
            session.row.lock = None
