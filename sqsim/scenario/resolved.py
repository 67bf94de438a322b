# SPDX-License-Identifier: Apache-2.0
"""A scenario resolved: the model, hardware and profile that it names, and the capacity and costs that follow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from sqsim.models.cost.capacity import KvCapacity, kv_capacity
from sqsim.models.cost.eviction_cost import InPlaceCost, in_place_cost
from sqsim.models.cost.geometry import Geometry, geometry
from sqsim.models.cost.hardware import Hardware, hardware
from sqsim.models.cost.profile import Profile
from sqsim.models.cost.step_cost import CostModel, profile
from sqsim.models.serving.limits import Limits
from sqsim.scenario.engine import Engine
from sqsim.scenario.scenario import Scenario


def _unplaced(_: str) -> AbstractContextManager[None]:
    return nullcontext()  # no scenario, so no key to name


@dataclass(frozen=True)
class Resolved:
    """Looks up what a model and an engine name, each value once, at its first use.

    InputError, at that use, for a value that is unknown, cannot be read or does not fit; for a scenario it names the key.
    So a caller that needs only the model's shape is not stopped by a GPU without a measured profile.

    `other_profile` replaces the named profile, and `told`, the pools that a running server reports, replaces the computed
    ones. `blamed` gives an error the place of the key that caused it.
    """

    model: str
    engine: Engine
    profile_name: str = "auto"
    kernel_costs: str | None = None  # the file that engine.kernel_costs names; None: auto
    other_profile: Profile | None = None
    told: KvCapacity | None = None
    blamed: Callable[[str], AbstractContextManager[None]] = _unplaced

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        other_profile: Profile | None = None,
        *,
        engine: Engine | None = None,
        told: KvCapacity | None = None,
    ) -> Resolved:
        """Resolve a scenario; `engine` and `told` describe a real server in place of the scenario's engine."""
        return cls(
            str(scenario.model_path or scenario.model),
            engine or scenario.engine,
            scenario.profile,
            scenario.kernel_costs,
            other_profile,
            told,
            scenario.blamed,
        )

    def checked(self) -> Resolved:
        """Look everything up now, so that errors come before the run; return itself."""
        _ = self.geometry, self.hardware, self.weight_bytes, self.in_place
        with self.blamed("engine.tensor_parallel"):
            self.geometry.kv_heads_per_gpu(self.engine.tensor_parallel)
        _ = self.kv_capacity, self.cost
        return self

    @cached_property
    def geometry(self) -> Geometry:
        with self.blamed("model"):
            return geometry(self.model)

    @cached_property
    def hardware(self) -> Hardware:
        with self.blamed("engine.gpu"):
            return hardware(self.engine.gpu)

    @cached_property
    def profile(self) -> Profile:
        with self.blamed("engine.profile"):
            found = self.other_profile or profile(self.model, self.engine.gpu, self.profile_name)
            return found.with_kv(self.engine.kv_dtype)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the model's weights, all GPUs together, in the format that the profile names."""
        weights = self.profile.weights
        with self.blamed("engine.profile"):
            return self.geometry.weight_bytes(weights)

    @cached_property
    def in_place(self) -> InPlaceCost:
        """Cost of an eviction in place."""
        device = self.hardware
        with self.blamed("engine.kernel_costs"):
            return in_place_cost(device, self.kernel_costs)

    @cached_property
    def kv_capacity(self) -> KvCapacity:
        """The KV pools of one replica."""
        if self.told is not None:
            return self.told
        keys, shape, device, weight_bytes = self.engine, self.geometry, self.hardware, self.weight_bytes
        with self.blamed("engine" if keys.kv_capacity is None else "engine.kv_capacity"):
            return kv_capacity(
                shape,
                device,
                weight_bytes,
                mem_fraction=keys.mem_fraction,
                kv_dtype=keys.kv_dtype,
                swa_pool=keys.swa_pool,
                swa_full_tokens_ratio=keys.swa_full_tokens_ratio,
                page_size=keys.page_size,
                tensor_parallel=keys.tensor_parallel,
                given=keys.kv_capacity,
            )

    @cached_property
    def cost(self) -> CostModel:
        """Cost model of a forward step."""
        return CostModel(
            self.profile,
            self.geometry,
            self.hardware,
            tensor_parallel=self.engine.tensor_parallel,
            kv_dtype=self.engine.kv_dtype,
        )

    @cached_property
    def limits(self) -> Limits:
        """Limits of the scheduler."""
        keys, window = self.engine, self.geometry.window
        return Limits(
            kv_capacity=self.kv_capacity.tokens,
            swa_capacity=self.kv_capacity.swa_tokens,
            swa_window=window - 1 if window else None,
            page_size=keys.page_size,
            max_running=keys.max_running,
            chunked_prefill=keys.chunked_prefill,
            schedule_conservativeness=keys.schedule_conservativeness,
            context_length=self.context_length,
            release_idle_sessions=keys.cache == "session",
        )

    @property
    def context_length(self) -> int:
        """The longest context in tokens: the engine's, else the model's."""
        return self.engine.context_length or self.geometry.context_length

    @property
    def hybrid(self) -> bool:
        """Whether sliding-window layers have a pool of their own."""
        if self.told is not None:
            return self.told.swa_tokens is not None
        return self.engine.swa_pool and self.geometry.sliding_layers > 0

    @property
    def tail_tokens(self) -> int:
        """Tokens before a fork's end whose window KV it needs; 0 without a sliding-window pool."""
        return self.geometry.window or 0 if self.hybrid else 0
