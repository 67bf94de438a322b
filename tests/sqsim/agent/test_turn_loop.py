# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1's consequences, each a test (METHOD.md, "What follows from it")."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from sqsim.agent.aux_thread import TRIGGER_TOKENS
from sqsim.agent.turn_loop import Action, Clear, Finish, LoopOptions, RunMain, RunTools, Spawn, TurnLoop
from sqsim.models.serving.tokens import Segments, count
from sqsim.policies.base import Decision, Script
from sqsim.policies.decisions import DecisionModel
from sqsim.policies.keep_last import KeepLast
from sqsim.policies.none import NoEviction
from sqsim.policies.oracle import Oracle
from sqsim.policies.sidequest import SideQuest
from sqsim.trace.schema import Reset
from tests.sqsim.tasks import call, chain, task, tasks, turn


class Says(DecisionModel):
    """An aux thread that names what the test says, whatever the task needs."""

    def __init__(self, *decisions: Iterable[int], malformed: bool = False) -> None:
        self._decisions = [tuple(d) for d in decisions]
        self._malformed = malformed
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def decide(self, index: int, turn: int, open_cursors: Iterable[int]) -> Script:
        self.asked.append((turn, tuple(open_cursors)))
        named = self._decisions[index] if index < len(self._decisions) else ()
        return Script(125, Decision(malformed=True) if self._malformed else Decision(named))


def loop(made, policy=None, decisions=None, **options) -> TurnLoop:
    return TurnLoop(
        made, policy or NoEviction(), Segments(), LoopOptions(**{"in_place": False, **options}), decisions
    )


class Drive:
    """Carries out actions without a clock: each aux thread ends when the test says so."""

    def __init__(self, made: TurnLoop) -> None:
        self.loop = made
        self.log: list[Action] = []
        self.living = []
        self._take(made.start())

    def _take(self, actions: list[Action]) -> None:
        self.log += actions
        self.living += [action.aux for action in actions if isinstance(action, Spawn)]

    def main(self) -> None:
        """The main step runs to its end."""
        step = next(action for action in reversed(self.log) if isinstance(action, RunMain))
        self._take(self.loop.main_prefilled())
        self._take(self.loop.main_ended(count(step.prompt) + count(step.output) - 1, fresh=False))

    def aux(self) -> None:
        """The living aux thread ends."""
        self.loop.aux_ended(self.living[-1])

    def tools(self) -> None:
        self._take(self.loop.tools_returned(kv_kept=True))

    def turn(self, *, aux: bool = True) -> None:
        self.main()
        if aux and self.living and not self.living[-1].finished:
            self.aux()
        if not isinstance(self.log[-1], Finish):
            self.tools()

    def kinds(self) -> list[str]:
        return [type(action).__name__ for action in self.log]

    def clears(self) -> list[tuple[int, tuple[int, ...]]]:
        return [(a.turn, tuple(e.cursor for e in a.clearing.evicted)) for a in self.log if isinstance(a, Clear)]

    def spawns(self) -> list[int]:
        return [action.aux.turn for action in self.log if isinstance(action, Spawn)]


def test_without_eviction_the_trace_is_replayed_as_it_is():
    made = chain(3)
    drive = Drive(loop(made))
    while not isinstance(drive.log[-1], Finish):
        drive.turn()
    assert drive.kinds() == ["RunMain", "RunTools"] * 3 + ["RunMain", "Finish"]
    prompts = [count(a.prompt) for a in drive.log if isinstance(a, RunMain)]
    assert prompts == [70, 205, 340, 475]
    assert [count(a.output) for a in drive.log if isinstance(a, RunMain)] == [35, 35, 35, 50]
    assert drive.log[-1] == Finish("completed", None)


def test_evict_then_spawn_then_main_step():
    """Law 9, with `with_main`: all three at one boundary."""
    drive = Drive(loop(chain(5), SideQuest(k=1), Says((), (0,), (1,)), aux_start="with_main"))
    for _ in range(4):
        drive.turn()
    assert drive.spawns() == [1, 2, 3, 4]
    assert drive.clears() == [(3, (0,)), (4, (1,))]
    assert drive.kinds()[-4:] == ["RunTools", "Clear", "Spawn", "RunMain"]


def test_a_thread_is_applied_and_the_next_starts_at_the_same_boundary():
    drive = Drive(loop(chain(9), SideQuest(k=2), Says((0,), (1,)), aux_start="with_main"))
    drive.turn()
    drive.turn()  # boundary 2 spawns aux 0
    drive.turn(aux=False)  # boundary 3: still running
    assert drive.clears() == []
    drive.main()
    drive.aux()
    drive.tools()  # boundary 4: aux 0 is applied, aux 1 starts
    assert drive.kinds()[-3:] == ["Clear", "Spawn", "RunMain"]
    assert drive.clears() == [(4, (0,))]
    assert drive.spawns() == [2, 4]
    assert drive.loop.aux_threads[0].state == "late"


def test_a_living_thread_skips_the_slot():
    drive = Drive(loop(chain(9), SideQuest(k=2), Says()))
    for _ in range(6):
        drive.turn(aux=False)
    assert drive.spawns() == [2]


def test_every_k_turns_and_not_before_there_is_a_cursor():
    drive = Drive(loop(chain(9), SideQuest(k=4), Says()))
    for _ in range(9):
        drive.turn()
    drive.main()
    assert drive.spawns() == [4, 8]
    literal = Drive(loop(chain(9), SideQuest(k=4, spawn_without_cursors=True), Says()))
    for _ in range(9):
        literal.turn()
    assert literal.spawns() == [0, 4, 8]


def test_an_aux_thread_reads_the_context_of_its_fork_and_the_trigger():
    says = Says()
    drive = Drive(loop(chain(5), SideQuest(k=2), says))
    drive.turn()
    drive.turn()
    drive.turn()
    aux = drive.living[0]
    main = [a for a in drive.log if isinstance(a, RunMain)][2]
    assert aux.fork_tokens == count(main.prompt)
    assert count(aux.prompt) == aux.fork_tokens + TRIGGER_TOKENS
    assert says.asked == [(2, (0, 1))]  # the newest included, nothing created after the fork


def test_after_main_prefill_the_thread_starts_once_the_first_token_is_out():
    made = loop(chain(5), SideQuest(k=2), Says())
    drive = Drive(made)
    drive.turn()
    drive.turn()
    assert isinstance(drive.log[-1], RunMain)
    assert [type(a) for a in made.main_prefilled()] == [Spawn]
    assert made.main_prefilled() == []


def test_names_that_are_gone_or_never_were_change_nothing_and_malformed_output_deletes_nothing():
    drive = Drive(loop(chain(6), SideQuest(k=2), Says((0, 99), (0,))))
    for _ in range(6):
        drive.turn()
    assert drive.clears() == [(3, (0,))]
    broken = Drive(loop(chain(6), SideQuest(k=2), Says((0,), malformed=True)))
    for _ in range(6):
        broken.turn()
    assert broken.clears() == []
    assert broken.loop.aux_threads[0].state == "malformed"


def test_the_task_ends_while_its_aux_thread_lives():
    drive = Drive(loop(chain(2), SideQuest(k=2), Says()))
    drive.turn()
    drive.turn()
    drive.main()
    finish = drive.log[-1]
    assert isinstance(finish, Finish)
    assert finish.outcome == "completed"
    assert finish.cancel is drive.living[0]
    assert drive.living[0].state == "cancelled"


def test_turn_end_applies_before_the_tool_wait():
    drive = Drive(loop(chain(6), SideQuest(k=2), Says((0,)), apply_at="turn_end"))
    drive.turn()
    drive.turn()
    drive._take(drive.loop.main_prefilled())
    drive.aux()
    step = [a for a in drive.log if isinstance(a, RunMain)][-1]
    actions = drive.loop.main_ended(count(step.prompt) + 34, fresh=False)
    assert [type(a) for a in actions] == [Clear, RunTools]
    assert actions[0].turn == 3


def test_keep_last_counts_the_newest_and_never_evicts_the_unread():
    drive = Drive(loop(chain(6), KeepLast(n=3)))
    for _ in range(5):
        drive.turn()
    assert drive.clears() == [(4, (0,)), (5, (1,))]
    greedy = Drive(loop(chain(4), KeepLast(n=0)))
    for _ in range(4):
        greedy.turn()
    assert greedy.clears() == [(2, (0,)), (3, (1,)), (4, (2,))]  # each after the step that first reads it
    patient = Drive(loop(chain(4), KeepLast(n=0, trigger_tokens=10_000)))
    for _ in range(4):
        patient.turn()
    assert patient.clears() == []


def test_the_oracle_evicts_right_after_the_last_use():
    made = chain(5, uses={3: (0,), 5: (1,)})
    drive = Drive(loop(made, Oracle().with_hindsight(made)))
    for _ in range(5):
        drive.turn()
    # 0 is used last by step 3, 2 and 3 never: gone one boundary after they were read; 1 is needed by the answer
    assert drive.clears() == [(4, (0, 2)), (5, (3,))]


def test_the_context_limit_counts_positions():
    made = chain(4)  # its last prompt has 610 tokens and 50 of output; SGLang keeps 2 free
    plain = {
        "none": (662, 661),
        "in_place": (662, 661),
        "reprefill": (332, 331),
    }  # keep_last 0 leaves 610 - 3 * 110
    for name, limits in plain.items():
        outcomes = []
        for limit in limits:
            policy = NoEviction() if name == "none" else KeepLast(n=0)
            drive = Drive(loop(made, policy, in_place=name == "in_place", context_length=limit))
            while not isinstance(drive.log[-1], Finish):
                drive.turn()
            outcomes.append(drive.log[-1].outcome)
        assert outcomes == ["completed", "context_limit"], name


def test_a_turn_limit_is_a_named_end():
    drive = Drive(loop(chain(5), max_turns=2))
    drive.turn()
    drive.main()
    assert drive.log[-1] == Finish("turn_limit", None)


def test_a_recording_without_an_answer_ends_with_its_last_tools():
    drive = Drive(loop(chain(2, answer=None)))
    drive.turn()
    drive.turn()
    assert drive.log[-1] == Finish("completed", None)


def test_the_wait_is_tools_and_user_and_may_be_capped():
    made = task(
        turn(
            call(0, latency_s=3.0),
            call(1, latency_s=5.0, parallel=True),
            call(2, latency_s=4.0, parallel=True),
            user_wait_s=7.0,
        )
    )
    waits = [
        a.tool_wait_s + a.user_wait_s
        for limit in (None, 2.0)
        for a in _first_turn(loop(made, tool_wait_cap_s=limit))
        if isinstance(a, RunTools)
    ]
    assert waits == [15.0, 9.0]


def _first_turn(made: TurnLoop) -> list[Action]:
    drive = Drive(made)
    drive.main()
    return drive.log


@given(tasks(), st.sampled_from(["none", "keep_last", "oracle", "sidequest"]), st.booleans(), st.data())
def test_laws_of_the_loop_on_random_tasks(made, name, in_place, data):
    """One end, order evict-spawn-main, no eviction of the unread, prompts without what was evicted (laws 1, 8, 9)."""
    k = data.draw(st.integers(1, 4))
    policy = {
        "none": NoEviction(),
        "keep_last": KeepLast(n=k - 1),
        "oracle": Oracle().with_hindsight(made),
        "sidequest": SideQuest(k=k),
    }[name]
    decisions = DecisionModel(
        made,
        made.task_id,
        seed=data.draw(st.integers(0, 99)),
        recall=0.7,
        false_rate=0.3,
        aux_tokens=20,
        aux_max_new_tokens=24,
    )
    start = data.draw(st.sampled_from(["after_main_prefill", "with_main"]))
    drive = Drive(loop(made, policy, decisions, in_place=in_place, aux_start=start))
    for _ in range(made.steps):
        drive.turn(aux=data.draw(st.booleans()))
    ends = [a for a in drive.log if isinstance(a, Finish)]
    assert ends == drive.log[-1:]
    assert ends[0].outcome == "completed"
    opened = {c.cursor: at for at, t in enumerate(made.turns) for c in t.calls if c.cursor is not None}
    gone: set[int] = set()
    for action in drive.log:
        if isinstance(action, Clear):
            for eviction in action.clearing.evicted:
                assert eviction.cursor not in gone
                assert opened[eviction.cursor] + 1 < action.turn
                gone.add(eviction.cursor)
        if isinstance(action, Spawn):
            assert (
                set(action.aux.decision.named) <= {c for c, at in opened.items() if at < action.aux.turn} - gone
            )
    kinds = [type(a) for a in drive.log]
    assert all(b is not Clear for a, b in itertools.pairwise(kinds) if a is Spawn)
    mains = {run.segment for a in drive.log if isinstance(a, RunMain) for run in a.prompt + a.output}
    own = {run.segment for aux in drive.living for run in (aux.prompt[-1], *aux.output)}  # trigger and output
    assert not own & mains


def test_a_cursor_that_closed_while_the_thread_lived_is_ignored_and_counted():
    """It was open at the fork and gone at application (here by a compaction): named, not evicted, counted `ignored`."""
    made = task(
        turn(call(0)), turn(call(1)), turn(call(2), reset=Reset(keep_tokens=10)), turn(call(3)), answer=10
    )
    drive = Drive(loop(made, SideQuest(k=1), Says((0,))))
    drive.turn()
    drive.turn(aux=False)
    drive.main()
    thread = drive.living[-1]
    while not thread.finished:
        drive.aux()
    while thread.applied_turn is None and not isinstance(drive.log[-1], Finish):
        drive.tools()
        drive.main()
    assert (thread.decision.named, thread.ignored) == ((0,), 1)
    assert drive.clears() == []
