# SPDX-License-Identifier: Apache-2.0
"""A record made by hand: two tasks, one of which fails, on an engine of 1,000 tokens."""

from __future__ import annotations

import pyarrow as pa

from sqsim.record.schema import AUX, ENGINE, EVICTIONS, TASKS, TURNS, Rows, RunRecord

RUN = {
    "kind": "simulated",
    "status": "complete",
    "scenario": {"engine": {"cache": "session"}, "policy": {"name": "sidequest", "k": 4}, "seed": 0},
    "traces": [{"path": "t.jsonl", "sha256": "ab" * 32}],
    "kv_capacity": {"tokens": 1000, "swa_tokens": None, "how": "given"},
}


def table(schema: pa.Schema, *rows: tuple) -> pa.Table:
    made = Rows(schema)
    for row in rows:
        made.append(**dict(zip(schema.names, row, strict=True)))
    return made.table()


def tiny_record() -> RunRecord:
    return RunRecord(
        run=dict(RUN),
        timing={"wall_s": 0.5, "host": "here"},
        tasks=table(
            TASKS,
            # task, start, end, outcome, turns, output, peak, reads main, reads aux, parent
            ("a", 0.0, 20.0, "completed", 2, 16, 300, 1000, 50, None),
            ("b", 2.0, 12.0, "context_limit", 1, 0, 500, 0, 0, None),
        ),
        turns=table(
            TURNS,
            # task, turn, submit, admit, first, end, tool_end, prompt, cached, computed, output, resident, shift, retr, chunks
            ("a", 0, 0.0, 0.5, 1.0, 3.0, 10.0, 100, 0, 100, 11, 110, 0, 0, 1),
            ("b", 0, 2.0, None, None, None, None, 500, 0, 0, 0, 0, 0, 0, 0),
            ("a", 1, 10.0, 11.0, 12.0, 20.0, None, 200, 110, 90, 5, 205, 40, 1, 2),
        ),
        aux=table(
            AUX,
            # task, spawn, submit, first, end, state, fork, prompt, cached, output, named, ignored, applied, text
            ("a", 0, 1.0, 1.5, 4.0, "applied", 100, 110, 100, 6, [0], 0, 1, None),
            ("a", 1, 12.0, None, 20.0, "cancelled", 200, 210, 200, 4, [], 0, None, None),
        ),
        evictions=table(EVICTIONS, ("a", 1, 10.0, 0, 40, "aux:0", 1, None, None)),
        engine=table(
            ENGINE,
            # t0, t1, mode, steps, requests, new, context, running, waiting, kv: running, idle, aux, evictable, free, used mean,
            # swa, retracted, reclaimed, released, ratio
            (0.0, 1.0, "prefill", 1, 1, 100, 100, 1, 1, 100, 0, 0, 0, 900, 100.0, None, 0, 0, 0, 0.7),
            (1.0, 3.0, "decode", 10, 1, 10, 1050, 1, 1, 110, 0, 120, 50, 720, 200.0, None, 1, 30, 0, 0.6),
            (3.0, 10.0, "idle", 0, 0, 0, 0, 0, 0, 0, 110, 0, 50, 840, 110.0, None, 0, 0, 0, 0.6),
            (10.0, 25.0, "mixed", 5, 1, 95, 1000, 1, 0, 300, 0, 0, 450, 250, 300.0, None, 0, 5, 2, 0.5),
        ),
    )
