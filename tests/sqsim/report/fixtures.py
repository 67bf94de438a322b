# SPDX-License-Identifier: Apache-2.0
"""Deterministic records and a study for the page's tests: shapes of real ones, numbers from simple formulas, no result.

6 variants x 8 concurrencies, sweeps of K and recall, an assumed capacity, a real trace; awkward cases change them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sqsim.record.files import write_record
from sqsim.record.schema import AUX, ENGINE, EVICTIONS, TASKS, TURNS, Rows, RunRecord

CONCURRENCIES = (8, 16, 24, 32, 64, 96, 128, 256)
CAPACITY = 620_000
PAPER = {"published": "sidequest", "model": "gpt-oss-20b", "gpu": "h100-sxm"}

# policy, cache, after_eviction, share of the resident tokens that stays, throughput lost to recomputation
VARIANTS = {
    "none / radix": ("none", "radix", None, 1.0, 0.10),
    "none / session": ("none", "session", None, 1.0, 0.05),
    "keep_last / reprefill": ("keep_last", "radix", "reprefill", 0.52, 0.22),
    "sidequest / reprefill": ("sidequest", "radix", "reprefill", 0.46, 0.16),
    "sidequest / in_place": ("sidequest", "session", "in_place", 0.45, 0.07),
    "oracle / in_place": ("oracle", "session", "in_place", 0.38, 0.03),
}


def labels(variant, concurrency=24, **more):
    policy, cache, after, *_ = VARIANTS[variant]
    k, recall = (4, 0.85) if policy == "sidequest" else (None, None)
    return {
        "variant": variant, "policy": policy, "cache": cache, "after_eviction": after, "concurrency": concurrency,
        "k": k, "recall": recall, "false_rate": None if recall is None else 0.02,
    } | more  # fmt: skip


def metrics_of(variant, concurrency=24, k=4, recall=0.85, capacity=CAPACITY):
    """All metrics of one run, from formulas that behave like a server: it saturates where KV fills."""
    policy, cache, _, kept, lost = VARIANTS[variant]
    if policy == "sidequest":
        kept = 1 - 0.65 * recall * (1 - 0.03 * k)
    peak = 24_000 * kept
    demand = concurrency * peak * 0.98
    over = max(0.0, demand / capacity - 0.97)
    active = min(concurrency, capacity * 0.97 / peak)
    rate = 46 * active / (1 + active / 70) * (1 - min(0.6, lost * over))
    output = 424 * 4601
    aux = int(424 * 24 / k * 126) if policy == "sidequest" else 0
    task_s = concurrency * 4601 / rate
    retracted = int(over * 90) if cache == "radix" else int(over * 11)
    wrong = {"keep_last": 1310, "sidequest": int(60 + 200 * recall)}.get(policy, 0)
    evictions = 0 if policy == "none" else int(6000 * (1 - kept))
    return {
        "tasks_total": 424,
        "tasks_completed": 424,
        "tasks_failed": 0,
        "run_time_s": output / rate,
        "output_tokens": output,
        "aux_output_tokens": aux,
        "output_tok_s": rate,
        "total_tok_s": rate * (1 + aux / output),
        "output_tok_s_peak": rate * 1.21,
        "kv_capacity_tokens": capacity,
        "kv_usage_peak": min(0.9993, demand / capacity),
        "kv_usage_mean": min(0.97, demand / capacity * 0.71),
        "kv_held_peak": min(1.0, demand / capacity * 1.2),
        "peak_tokens_mean": peak,
        "peak_tokens_p50": peak * 0.93,
        "peak_tokens_completed_mean": peak,
        "kv_reads_main_tokens": int(output * peak * 0.61 * (1.1 if policy == "sidequest" else 1)),
        "kv_reads_aux_tokens": int(aux * peak * 0.6),
        "prefill_tokens": int(424 * 19_000 * (1 + lost * 6 + over)),
        "cached_tokens": int(424 * 260_000 * kept / (1 + over)),
        "evictions": evictions,
        "evicted_tokens": evictions * 1010,
        "evicted_then_used": wrong,
        "evicted_uses": int(wrong * 1.3),
        "aux_spawned": aux // 126,
        "aux_applied": aux // 140,
        "aux_late": int(aux / 126 * 0.4 / k),
        "aux_cancelled": aux // 2300,
        "aux_malformed": 0,
        "aux_e2e_s_p50": None if not aux else 2.31,
        "reclaimed_tokens": int(over * 1e6) if cache == "radix" else 0,
        "released_sessions": int(over * 300) if cache == "session" else 0,
        "retractions": retracted,
        "ttft_s_p50": 0.08 + 0.9 * over + 0.0004 * concurrency,
        "ttft_s_p90": 0.2 + 9 * over + 0.001 * concurrency,
        "ttft_s_p99": 0.9 + 30 * over + 0.002 * concurrency,
        "tpot_s_p50": 0.012 + 0.00008 * active + (0.0006 if aux else 0),
        "tpot_s_p90": 0.015 + 0.00011 * active + (0.0008 if aux else 0),
        "tpot_s_p99": 0.02 + 0.00016 * active,
        "task_s_p50": task_s * 0.96,
        "task_s_p90": task_s * 1.55,
        "task_s_p99": task_s * 2.4,
        "regret_tokens": None if policy == "none" and cache == "radix" else kept / 0.38 - 1,
        "simulated": True,
        "wall_s": 1.7,
    }


def run_json(variant="none / radix", concurrency=24, **more):
    policy, cache, after, *_ = VARIANTS[variant]
    named = {"name": policy} | ({} if after is None else {"after_eviction": after})
    if policy == "sidequest":
        named |= {"k": 4, "recall": 0.85, "false_rate": 0.02, "aux_tokens": 125}
    return {
        "kind": "simulated",
        "status": "complete",
        "scenario": {
            "traces": ["frames.jsonl.zst"],
            "tasks": 24,
            "model": "gpt-oss-20b",
            "engine": {"gpu": "h100-sxm", "profile": "auto", "cache": cache, "mem_fraction": 0.88},
            "load": {"concurrency": concurrency},
            "policy": named,
            "seed": 0,
        },
        "versions": {"sqsim": "0.1.0", "simpy": "4.1.2", "models_sglang": "0.5.23"},
        "traces": [
            {
                "path": "frames.jsonl.zst",
                "sha256": "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
            }
        ],
        "references": {"synthesised": 24},
        "kv_capacity": {"tokens": 60_000, "swa_tokens": 48_000, "how": "computed: free memory after weights"},
        "context_length": 131_072,
        "profile": {
            "name": "h100-roofline",
            "chosen": "its terms are measured on the H100",
            "evidence": {"step": "assumed", "moe": "derived", "decode_full": "measured"},
        },
        "assumed": ["policy.recall", "policy.false_rate", "policy.aux_tokens"] if policy == "sidequest" else [],
        "out_of_range": {"decode_full": 12} if policy == "sidequest" else {},
    } | more


def make_record(variant="none / radix", concurrency=6, tasks=24, turns=12, capacity=60_000, seed=7, **more):
    """One small run: tasks in a closed loop, context that grows (and shrinks with a policy), pressure at the top."""
    policy, cache, _, _, _ = VARIANTS[variant]
    rng = np.random.default_rng(seed)
    rows = {
        name: Rows(schema)
        for name, schema in (("tasks", TASKS), ("turns", TURNS), ("aux", AUX), ("evictions", EVICTIONS))
    }
    free_at = [0.0] * concurrency
    holdings = []  # (start, end, tokens, owner)
    for number in range(tasks):
        name = f"frames-{number:03d}"
        slot = int(np.argmin(free_at))
        start = now = free_at[slot]
        context, shift, peak, reads, aux_reads, output_total, open_cursors = 1800, 0, 0, 0, 0, 0, []
        count = int(turns * rng.uniform(0.6, 1.6))
        for turn in range(count):
            if policy != "none" and turn >= 3 and turn % (1 if policy == "keep_last" else 4) == 0:
                for cursor in open_cursors[:-3]:
                    used = int(rng.random() < 0.12)
                    rows["evictions"].append(
                        task=name, turn=turn, time_s=now, cursor=cursor, tokens=950,
                        by=f"aux:{turn // 4 - 1}" if policy == "sidequest" else policy,
                        age_turns=turn - cursor, last_use_turn=min(count, cursor + 2 + 5 * used), used_later=used,
                    )  # fmt: skip
                    context, shift = context - 950, shift + 950
                open_cursors = open_cursors[-3:]
            queue = float(rng.exponential(0.9)) * (turn % 5 == 4) * (policy == "none")
            new, out = int(rng.integers(500, 1100)), int(rng.integers(60, 320))
            admit, first = now + queue, now + queue + 0.05 + new / 9000
            end = first + out * float(rng.uniform(0.011, 0.017))
            waits = turn + 1 < count
            tools = end + float(rng.gamma(2.0, 0.8)) if waits else None
            cached = context
            context += new + out
            rows["turns"].append(
                task=name, turn=turn, submit_s=now, admit_s=admit, first_token_s=first, end_s=end, tool_end_s=tools,
                prompt_tokens=cached + new, cached_tokens=cached, computed_tokens=new, output_tokens=out,
                resident_tokens_after=context, shift=shift, retractions=int(queue > 1.5), prefill_chunks=1,
            )  # fmt: skip
            if policy == "sidequest" and turn and turn % 4 == 0:
                aux_end = first + 125 * 0.015
                rows["aux"].append(
                    task=name, spawn_turn=turn, submit_s=first, first_token_s=first + 0.1, end_s=aux_end,
                    state="late" if turn == 8 else "applied" if turn + 1 < count else "cancelled",
                    fork_tokens=cached, prompt_tokens=cached + 12, cached_tokens=cached, output_tokens=125,
                    named=open_cursors[:-3], ignored=0, applied_turn=turn + 1 if turn + 1 < count else None, text=None,
                )  # fmt: skip
                holdings.append((first, aux_end, 137, "kv_aux"))
                aux_reads += cached * 125
            holdings.append((now, end, context, "kv_running"))
            if waits:
                holdings.append(
                    (end, tools, context, "kv_idle_sessions" if cache == "session" else "kv_tree_evictable")
                )
                open_cursors.append(turn)
            peak, reads, output_total = max(peak, context), reads + out * context, output_total + out
            now = end if tools is None else tools
        rows["tasks"].append(
            task=name, start_s=start, end_s=now, outcome="completed", turns=count, output_tokens=output_total,
            peak_tokens=peak, kv_read_tokens_main=reads, kv_read_tokens_aux=aux_reads, parent=None,
        )  # fmt: skip
        free_at[slot] = now
    return RunRecord(
        run=run_json(variant, concurrency, **more),
        timing={"wall_s": 0.5, "host": "a test"},
        engine=_engine(holdings, max(free_at), capacity),
        **{name: each.table() for name, each in rows.items()},
    )


def _engine(holdings, end, capacity, steps=1500):
    rows = Rows(ENGINE)
    edges = np.linspace(0, end, steps + 1)
    held = {name: np.zeros(steps) for name in ("kv_running", "kv_aux", "kv_idle_sessions", "kv_tree_evictable")}
    for start, stop, tokens, owner in holdings:
        held[owner][(edges[:-1] >= start) & (edges[:-1] < stop)] += tokens
    for step in range(steps):
        left, state = capacity, {}
        for name, values in held.items():
            state[name] = min(left, int(values[step]))
            left -= state[name]
        full = left == 0
        rows.append(
            t0_s=float(edges[step]), t1_s=float(edges[step + 1]), mode="decode", steps=3, requests=5, new_tokens=15,
            context_tokens=state["kv_running"] * 3, running=5, waiting=int(full), **state, kv_free=left,
            kv_used_mean=float(capacity - left - state["kv_tree_evictable"]), swa_used=None,
            retracted=int(full and step % 7 == 0), reclaimed_tokens=0, released_sessions=0, new_token_ratio=0.4,
        )  # fmt: skip
    return rows.table()


def point(variant, record=None, concurrency=24, **more):
    given, capacity = {key: more[key] for key in ("k", "recall") if key in more}, more.get("capacity", CAPACITY)
    return {
        "labels": labels(variant, concurrency, **given),
        "metrics": metrics_of(variant, concurrency, **given, capacity=capacity),
        "record": record,
    }


def study_json():
    """The whole study, without its records."""
    curves = [point(variant, concurrency=c) for variant in VARIANTS for c in CONCURRENCIES]
    for one in curves:
        if one["labels"]["concurrency"] == 24:
            one["record"] = "records/" + one["labels"]["variant"].replace(" / ", "-")
    assumed = [point(variant, capacity=585_000) for variant in VARIANTS]
    real = [
        point(variant, concurrency=c)
        for variant in ("none / radix", "sidequest / in_place")
        for c in (8, 24, 64)
    ]
    return {
        "schema": "sqsim-study/1",
        "title": "SideQuest on 424 FRAMES-like tasks",
        "asked": "What would evicting stale tool responses do to 424 research-agent tasks on gpt-oss-20b and one H100? "
        "Six ways of keeping the KV cache are compared at 8 to 256 tasks at a time.",
        "commands": ["make demo"],
        "panels": [
            panel("concurrency", "concurrency", "Throughput and task time against tasks at a time (FRAMES-like)", curves,
                  note="424 synthesised FRAMES-like tasks at the KV capacity of the cost profile.", evidence="simulated; step times derived", **PAPER),
            panel("assumed", "single", "At an assumed capacity: 24 FRAMES-like tasks that just fill memory", assumed,
                  note="KV capacity is assumed: set so that none peaks at 0.977 with 24 tasks.", evidence="assumed capacity", **PAPER),
            panel("k", "k_sweep", "How often should the aux thread run? (K sweep)",
                  [point("sidequest / in_place", k=k) for k in (1, 2, 4, 8, 16)], evidence="simulated"),
            panel("recall", "recall_sweep", "How good must the decisions be? (recall sweep)",
                  [point("sidequest / in_place", recall=r) for r in (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)],
                  note="Recall is assumed: no record has calibrated it.", evidence="assumed", **PAPER),
            panel("real", "concurrency", "A real trace: coding sessions", real, evidence="trace recorded; references derived"),
        ],
    }  # fmt: skip


def panel(ident, kind, title, points, note="", evidence="", **more):
    return {
        "id": ident,
        "kind": kind,
        "title": title,
        "note": note,
        "evidence": evidence,
        "points": points,
    } | more


def write_study(directory: Path, study=None, records=True) -> Path:
    study = study_json() if study is None else study
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "study.json").write_text(json.dumps(study, allow_nan=True))
    if records:
        named = {
            one["record"]: one["labels"]["variant"]
            for each in study["panels"]
            for one in each["points"]
            if one["record"]
        }
        for place, variant in named.items():
            write_record(make_record(variant), directory / place)
    return directory
