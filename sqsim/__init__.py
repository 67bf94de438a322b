# SPDX-License-Identifier: Apache-2.0
"""sqsim: replay recorded agent traces through a simulated SGLang under KV-eviction policies.

Everything below is imported on first use, so that `import sqsim` costs next to nothing; docs/python.md is the guide.

- `Scenario`: what to run; `Scenario(traces="tasks.jsonl", policy={"name": "keep_last"})`
- `load_scenario`: a scenario from its YAML file
- `simulate`: run a scenario; gives a `RunRecord`
- `RunRecord`: the results of a run: `.metrics()`, `.to_pandas()`, `.save()`, `RunRecord.load()`
- `metrics`: all numbers of a record
- `compare`: two records or more side by side
- `Policy`, `View`: the base of a policy of your own, and the state that it sees at a boundary
- `SqsimError`: base of every error that sqsim raises on purpose
- `InputError`: the input cannot be used; its kinds are `ScenarioError`, `TraceError`, `RecordError` and `PolicyError`
- `PolicyError`: a policy cannot be used, or broke the contract of policies
- `RunError`: a run started and could not be finished
- `MissingPackageError`: an optional package is not installed
- `Interrupted`: the user ended long work; its finished part is kept
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqsim.comparison.runs import compare
    from sqsim.errors import (
        InputError,
        Interrupted,
        MissingPackageError,
        PolicyError,
        RecordError,
        RunError,
        ScenarioError,
        SqsimError,
        TraceError,
    )
    from sqsim.policies.base import Policy, View
    from sqsim.record.metrics import metrics
    from sqsim.record.schema import RunRecord
    from sqsim.scenario.scenario import Scenario, load_scenario
    from sqsim.simulation.simulate import simulate

__version__ = "0.2.0"

__all__ = [
    "InputError",
    "Interrupted",
    "MissingPackageError",
    "Policy",
    "PolicyError",
    "RecordError",
    "RunError",
    "RunRecord",
    "Scenario",
    "ScenarioError",
    "SqsimError",
    "TraceError",
    "View",
    "__version__",
    "compare",
    "load_scenario",
    "metrics",
    "simulate",
]

_HOMES = {
    "sqsim.policies.base": ("Policy", "View"),
    "sqsim.comparison.runs": ("compare",),
    "sqsim.errors": (
        "InputError",
        "Interrupted",
        "MissingPackageError",
        "PolicyError",
        "RecordError",
        "RunError",
        "ScenarioError",
        "SqsimError",
        "TraceError",
    ),
    "sqsim.record.metrics": ("metrics",),
    "sqsim.record.schema": ("RunRecord",),
    "sqsim.scenario.scenario": ("Scenario", "load_scenario"),
    "sqsim.simulation.simulate": ("simulate",),
}
"""The names of the front door, by the module that defines them."""

if not TYPE_CHECKING:  # with __getattr__ in sight, a type checker would accept any name
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted(__all__)
