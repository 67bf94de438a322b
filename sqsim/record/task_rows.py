# SPDX-License-Identifier: Apache-2.0
"""One task's rows of the record, the same for a simulated and for a real task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqsim.agent.served import Served
from sqsim.agent.turn_loop import AuxThread, Clear, RunMain
from sqsim.record.hindsight import Hindsight
from sqsim.record.schema import AUX, EVICTIONS, TASKS, TURNS, Rows


@dataclass(slots=True)
class Tables:
    """The record's tables under construction, without the engine's."""

    tasks: Rows = field(default_factory=lambda: Rows(TASKS))
    turns: Rows = field(default_factory=lambda: Rows(TURNS))
    aux: Rows = field(default_factory=lambda: Rows(AUX))
    evictions: Rows = field(default_factory=lambda: Rows(EVICTIONS))


@dataclass(slots=True)
class _Turn:
    step: RunMain
    served: Served
    tool_end_s: float | None = None


class TaskRows:
    """Notes on one task. A `Served` may change until `write` turns the notes into rows, once, at the end."""

    def __init__(self, task: str, parent: str | None) -> None:
        self.task = task
        self._parent = parent
        self._turns: list[_Turn] = []
        self._aux: list[tuple[AuxThread, Served]] = []
        self._evictions: list[dict[str, Any]] = []

    def main(self, step: RunMain, served: Served) -> None:
        """Note a main step that ended or failed."""
        self._turns.append(_Turn(step, served))

    def tools_returned(self, now_s: float) -> None:
        """Note that the last tool response of the last main step returned."""
        self._turns[-1].tool_end_s = now_s

    def aux(self, thread: AuxThread, served: Served) -> None:
        """Note an aux thread that was started; call it in the order of their indices."""
        self._aux.append((thread, served))

    def clear(self, action: Clear, now_s: float) -> None:
        """Note cursors that were cleared from the main context."""
        self._evictions += [
            {
                "task": self.task,
                "turn": action.turn,
                "time_s": now_s,
                "cursor": eviction.cursor,
                "tokens": eviction.tokens,
                "by": action.by,
                "age_turns": action.turn - eviction.opened,
                "last_use_turn": None,
                "used_later": None,
            }
            for eviction in action.clearing.evicted
        ]

    def write(
        self, tables: Tables, start_s: float, end_s: float, outcome: str, hindsight: Hindsight | None = None
    ) -> None:
        """Append the rows of a task that has ended; `hindsight` judges its evictions."""
        for turn in self._turns:
            self._write_turn(tables, turn)
        for thread, served in self._aux:
            self._write_aux(tables, thread, served)
        for eviction in self._evictions:
            if hindsight is not None:
                last, later = hindsight.judge(eviction["turn"], eviction["cursor"])
                eviction["last_use_turn"], eviction["used_later"] = last, later
            tables.evictions.append(**eviction)
        mains = [turn.served for turn in self._turns]
        resident = [served.resident_tokens for served in mains if served.failure is None]
        tables.tasks.append(
            task=self.task,
            start_s=start_s,
            end_s=end_s,
            outcome=outcome,
            turns=len(mains),
            output_tokens=sum(served.output_tokens for served in mains),
            peak_tokens=max([0, *resident, *(served.prompt_tokens for served in mains)]),
            kv_read_tokens_main=sum(served.kv_reads for served in mains),
            kv_read_tokens_aux=sum(served.kv_reads for _, served in self._aux),
            parent=self._parent,
        )

    def _write_turn(self, tables: Tables, turn: _Turn) -> None:
        served = turn.served
        tables.turns.append(
            task=self.task,
            turn=turn.step.turn,
            submit_s=served.submit_s,
            admit_s=served.admit_s,
            first_token_s=served.first_token_s,
            end_s=served.end_s,
            tool_end_s=turn.tool_end_s,
            prompt_tokens=served.prompt_tokens,
            cached_tokens=served.cached_tokens,
            computed_tokens=served.computed_tokens,
            output_tokens=served.output_tokens,
            resident_tokens_after=served.resident_tokens,
            shift=turn.step.shift,
            retractions=served.retractions,
            prefill_chunks=served.prefill_chunks,
            **_where(tables.turns, served),
        )

    def _write_aux(self, tables: Tables, thread: AuxThread, served: Served) -> None:
        tables.aux.append(
            task=self.task,
            spawn_turn=thread.turn,
            submit_s=served.submit_s,
            first_token_s=served.first_token_s,
            end_s=served.end_s if thread.finished else None,
            state=thread.state,
            fork_tokens=thread.fork_tokens,
            prompt_tokens=served.prompt_tokens,
            cached_tokens=served.cached_tokens,
            output_tokens=served.output_tokens,
            named=list(thread.decision.named) if thread.finished and thread.decision is not None else [],
            ignored=thread.ignored,
            applied_turn=thread.applied_turn,
            text=served.text,
            **_where(tables.aux, served),
        )


def _where(rows: Rows, served: Served) -> dict[str, int]:
    """Return the column that tells replicas apart; empty in a record of one replica."""
    return {"replica": served.replica} if "replica" in rows.schema.names else {}
