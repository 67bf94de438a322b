"""Streaming sessions: a conversation keeps its row between turns (rule 36), and what our plugin adds.

A session holds a row from its first turn's first allocation until it closes. It is *busy* while a turn runs on the
row, else *idle*. SGLang pins idle sessions; the plugin can *release* them, *drop* spans of them in place, and lets an
aux request *fork* them: read the row up to a point and own only what it adds behind it. A fork holds a reference from
its admission until it ends or is retracted; meanwhile the session is neither dropped nor released, and what is left
of it when it is closed, aborted or retracted is what its forks read.
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
    """A session that holds a row. `content`: the tokens the row holds, and those its turn is about to add."""

    name: str
    row: Row
    content: Tokens
    publishes: bool  # does its running (first) turn still put its prompt into the tree?
    turn: Request | None  # the turn that runs on the row
    shift: int = 0  # tokens dropped from the row, which positions go on counting
    forks: list[Request] = field(default_factory=list)  # aux requests that read the row

    def holds(self, context: Tokens, tokens: int) -> int:
        """How many of the first `tokens` tokens of a context the row has."""
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
        ] = {}  # how much of the prompt a session may publish, from its first turn
        self.idle_tokens = 0  # slots that rows of idle sessions own
        self._pinned: set[str] = set()  # idle, and not to be released

    # Turns.

    def expect(self, request: Request) -> None:
        """A turn or a fork was submitted."""
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
        """The session that holds a row under this name."""
        return None if name is None else self._slots.get(name)

    def lend(self, session: Session, request: Request) -> int:
        """Tokens of the row the next turn continues from; frees what lies behind them (rule 36)."""
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
        """A later turn was admitted: the session is busy."""
        self._wake(session)
        session.turn, session.content = request, request.context

    def start(self, request: Request) -> None:
        """A first turn gets its slots: its row becomes the session's."""
        assert request.asked.session is not None
        assert request.row is not None
        assert request.asked.session not in self._slots, f"session {request.asked.session} has a row already"
        session = Session(request.asked.session, request.row, request.context, publishes=True, turn=request)
        self._slots[session.name] = request.lender = session

    def shift(self, name: str | None) -> int:
        """Tokens dropped from a session's row, 0 without one: positions go on behind them."""
        session = self.get(name)
        return 0 if session is None else session.shift

    def publish_limit(self, request: Request) -> int | None:
        """How much of its prompt a turn may publish; None: all of it."""
        return None if request.asked.session is None else self._publish.get(request.asked.session)

    def keep(self, session: Session, length: int) -> None:
        """A turn ended or was retracted: the session keeps the row, cut to `length` tokens."""
        row = session.row
        if row.length > length:
            if self._pool.page > 1 and row.slid > length:
                length = self._pool.floor(length)
            self._pool.trim(row, length)
        session.content = split(session.content, row.length)[0]
        session.publishes, session.turn = False, None
        self._rest(session)

    def lose(self, session: Session) -> bool:
        """A turn lost its KV (abort; retraction with the plugin), and the session its row.

        Returns whether nobody reads it; it is then the caller's to free.
        """
        session.publishes, session.turn = False, None
        del self._slots[session.name]
        if session.forks:
            self._leave(session)
        return not session.forks

    def finish(self, request: Request) -> None:
        """A turn or fork will not come back: carries out a close that waited for it."""
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
        """Tokens of the session's row that a fork can read: whole pages, with a live window before their end."""
        session = self.get(request.asked.session)
        if session is None or request.asked.fork_tokens is None:
            return 0
        row = session.row
        tokens = session.holds(request.context, min(request.asked.fork_tokens, request.known - 1))
        if session.publishes and row.shared < self._pool.floor(self._published(session)):
            tokens = min(tokens, row.shared)  # publishing may yet put other slots in place of the row's own
        tokens = self._pool.floor(tokens)
        if self._pool.hybrid:
            unread = max(tokens - self._pool.window, row.shared)
            if tokens < row.shared or row.slid > unread:
                return 0
        return tokens

    def fork(self, session: Session, request: Request) -> None:
        """A fork was admitted."""
        session.forks.append(request)

    def unfork(self, request: Request) -> None:
        """A fork gave up its KV: it ended, was aborted or retracted."""
        session = request.lender
        assert session is not None
        session.forks.remove(request)
        request.lender = None
        if not session.forks and session in self.closed:
            self.closed.remove(session)
            self._free(session)

    def window_floor(self, name: str) -> int | None:
        """The lowest position whose window slots a fork of this session still needs: admitted, waiting or announced."""
        reads = [fork.asked.fork_tokens or 0 for fork in self._forks.get(name, ())]
        if (
            name in self._slots
        ):  # an admitted fork reads what the row held then, which may be less than it asked for
            reads += [fork.row.shared for fork in self._slots[name].forks if fork.row is not None]
        if name in self._announced:
            reads.append(self._announced[name])
        return max(0, min(reads) - self._pool.window) if reads else None

    # Between turns.

    def close(self, name: str) -> None:
        """Free the session; deferred while a turn is unfinished (SGLang) or a fork reads it (the plugin)."""
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
        """Idle sessions nobody reads or pins, least recently used first, but for the one that `spare` runs on or forks."""
        own = None if spare is None else spare.asked.session
        idle = [session for session in self._idle.values() if not session.forks and session.name != own]
        return [session for session in idle if session.name not in self._pinned] if self._pinned else idle

    def pin(self, name: str) -> None:
        """An idle session is not released until `unpin`, or until its next turn is admitted."""
        if name in self._idle:
            self._pinned.add(name)

    def unpin(self, name: str) -> None:
        """It may be released again."""
        self._pinned.discard(name)

    @property
    def pins(self) -> int:
        """How many sessions are pinned."""
        return len(self._pinned)

    def release(self, session: Session) -> None:
        """Free an idle session's KV; its next turn starts anew."""
        self._wake(session)
        del self._slots[session.name]
        self._free(session)

    def drop(self, name: str, spans: Sequence[tuple[int, int]]) -> int:
        """Cut spans [start, stop) out of an idle session's row in place; returns the tokens freed.

        Full-attention slots go at once; of the window slots only those that are still live.
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
        """Every row a session holds."""
        return [session.row for session in (*self._slots.values(), *self.closed)]

    def named_rows(self) -> dict[str, Row]:
        """The rows of the open sessions."""
        return {name: session.row for name, session in self._slots.items()}

    def closed_tokens(self) -> int:
        """Slots of closed sessions that a fork still reads."""
        return sum(self._pool.owned(session.row) for session in self.closed)

    def check(self) -> None:
        """What must hold between any two events."""
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
        """How many tokens of a running first turn go into the tree."""
        assert session.turn is not None
        limit = self._publish.get(session.name)
        return session.turn.n_in if limit is None else limit

    def _leave(self, session: Session) -> None:
        """Nobody continues a row any more: what its forks read of it stays."""
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
