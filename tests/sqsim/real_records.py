# SPDX-License-Identifier: Apache-2.0
"""Simulated records relabelled as measured ones, so that every error is known: no figure here was measured."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sqsim.record.files import write_record
from sqsim.record.schema import TABLES, RunRecord
from sqsim.scenario.scenario import make_scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.store import write_tasks
from tests.sqsim.tasks import chain

SERVER = {
    "model": "/tmp/a/tiny-llama",
    "device": "cpu",
    "dtype": "auto",
    "kv_dtype": "auto",
    "load_format": "dummy",
    "tensor_parallel": 1,
    "attention_backend": "torch_native",
    "step_log": True,
}


def simulated(directory: Path, tasks: int = 8, **changes) -> RunRecord:
    """Tasks that crowd a small pool: usage goes from nothing to nearly all of it."""
    directory.mkdir(exist_ok=True)
    made = [chain(3 + n % 4, response=120 + 10 * n, name=f"t{n}", uses={3: (0,)}) for n in range(tasks)]
    write_tasks(directory / "tasks.jsonl", made)
    engine = {"gpu": "cpu", "kv_capacity": 3000, "context_length": 4096, "max_new_tokens": 256}
    engine |= changes.pop("engine", {})
    content = {"traces": str(directory / "tasks.jsonl"), "model": "tiny-llama", "load": {"concurrency": 6}}
    return simulate(make_scenario({**content, "engine": engine, **changes}))


def real(record: RunRecord, slower: float = 1.0, **run) -> RunRecord:
    """The same, told as if a server had taken `slower` times as long for everything; `run` goes into run.json."""
    told = copy.deepcopy(record.run)
    for key in ("profile", "out_of_range"):
        told.pop(key)
    told |= {
        "kind": "real",
        "versions": {"sqsim": "0", "sglang": "0.5.23", "httpx": "0"},
        "ended_by": None,
        "time_scale": 1.0,
        "server": dict(SERVER),
        "unlike_the_scenario": {},
        "not_modelled": [],
        "refused": [],
        **run,
    }
    tables = {name: _stretched(record.table(name), slower) for name in TABLES}
    return RunRecord(run=told, timing={"wall_s": 1.0, "host": "none"}, **tables)


def write(directory: Path, slower: dict[str, float], **run) -> list[Path]:
    """Write a real record of each name and its slowness, then the simulated one, `sim`; their directories."""
    record = simulated(directory / "trace")
    for name, factor in slower.items():
        write_record(real(record, factor, **run), directory / name)
    write_record(record, directory / "sim")
    return [directory / name for name in (*slower, "sim")]


def _stretched(table: pa.Table, factor: float) -> pa.Table:
    for place, column in enumerate(table.schema):
        if column.name.endswith("_s"):
            table = table.set_column(place, column, pc.multiply(table[column.name], factor))
    return table


def with_column(record: RunRecord, name: str, column: str, values: list) -> RunRecord:
    """The record with other values in a column."""
    table = record.table(name)
    place = table.schema.get_field_index(column)
    kind = table.schema.field(place)
    setattr(record, name, table.set_column(place, kind, pa.array(values, kind.type)))
    return record
