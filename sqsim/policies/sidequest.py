# SPDX-License-Identifier: Apache-2.0
"""SideQuest (arXiv 2602.22603): every K turns an auxiliary thread names stale cursors (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sqsim.base.part import FITS, AfterEviction, Count, Share, conflict
from sqsim.policies.base import AuxOptions, Choice, Decisions, Policy, View
from sqsim.policies.decisions import DecisionModel
from sqsim.trace.schema import Task

_NOTES = {
    "reprefill": "needs a model that can name stale responses",
    "in_place": "needs the in-place plugin, which no stock server has, and a model that can name stale responses",
}


class SideQuest(Policy):
    """Let the model name stale cursors on an aux thread; the turn loop evicts them at the next boundary.

    The paper states no K for inference and trains with 4. Taken literally, t = 0 spawns on a context without a cursor;
    `spawn_without_cursors` allows that. With `decisions: scripted` a `DecisionModel` draws the decisions from `recall`,
    `false_rate` and `aux_tokens`, the mean length of an output; with `live` the model of a real server writes them.
    """

    name: Literal["sidequest"] = Field(default="sidequest", description="sidequest")
    k: Count = Field(default=4, description="turns from one aux thread to the next, at least 1")
    decisions: Literal["scripted", "live"] = Field(
        default="scripted", description="scripted, or live: the server's model writes them (`sqreal run` only)"
    )
    recall: Share = Field(default=0.85, description="the chance that an expired cursor is named, from 0 to 1")
    false_rate: Share = Field(default=0.02, description="the chance that a live cursor is named, from 0 to 1")
    aux_tokens: Count = Field(default=125, description="mean tokens of an aux output, at least 1")
    aux_max_new_tokens: Count = Field(
        default=256, description="tokens that an aux request declares, at least 1"
    )
    aux_start: Literal["after_main_prefill", "with_main"] = Field(
        default="after_main_prefill", description="after_main_prefill or with_main"
    )
    after_eviction: AfterEviction = Field(default="in_place", description="in_place or reprefill")
    spawn_without_cursors: bool = Field(
        default=False, description="true, or false: start no aux thread while no cursor is open"
    )

    labelled: ClassVar[tuple[str, ...]] = ("k", "recall", "false_rate")
    assumed: ClassVar[tuple[str, ...]] = ("recall", "false_rate", "aux_tokens")

    @model_validator(mode="after")
    def _output_fits(self) -> SideQuest:
        if not self.runs_live and self.aux_tokens > self.aux_max_new_tokens:
            raise conflict(
                "aux_tokens",
                f"a mean of {self.aux_tokens} does not fit into policy.aux_max_new_tokens {self.aux_max_new_tokens}",
                "raise policy.aux_max_new_tokens, or lower policy.aux_tokens",
            )
        return self

    def spawn_aux(self, view: View) -> bool:
        return view.turn % self.k == 0 and (self.spawn_without_cursors or bool(view.cursors))

    def scripted(self, task: Task, name: str, seed: int) -> Decisions | None:
        if self.runs_live:
            return None
        return DecisionModel(
            task,
            name,
            seed=seed,
            recall=self.recall,
            false_rate=self.false_rate,
            aux_tokens=self.aux_tokens,
            aux_max_new_tokens=self.aux_max_new_tokens,
        )

    @property
    def runs_live(self) -> bool:
        return self.decisions == "live"

    @property
    def needs_references(self) -> bool:
        return not self.runs_live

    @property
    def aux(self) -> AuxOptions:
        return AuxOptions(self.aux_max_new_tokens, self.aux_start)

    @property
    def not_calibrated(self) -> tuple[str, ...]:
        return () if self.runs_live else self.assumed

    @classmethod
    def choices(cls, ks: Sequence[int]) -> Sequence[Choice]:
        return [
            Choice(
                f"sidequest K={k} / {after}",
                cache,
                {"k": k, "after_eviction": after},
                free=False,
                note=_NOTES[after],
            )
            for cache, after in FITS.items()
            for k in ks
        ]
