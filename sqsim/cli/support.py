# SPDX-License-Identifier: Apache-2.0
"""`sqsim support`: list the covered models and GPUs."""

from __future__ import annotations

from typing import Any

from sqsim.cli.output import (
    Json,
    print_json,
    print_line,
    print_rows,
)
from sqsim.fidelity.support import support


def support_command(as_json: Json = False) -> None:
    """List the covered models and GPUs, with the evidence that a prediction would rest on."""
    rows = support()
    if as_json:
        print_json(rows)
        return
    columns = ["model", "gpu", "profile", "measured", "not measured", "kv tokens", "also"]
    print_rows("", columns, [_covered(row) for row in rows if not row["model"].startswith("tiny-")])
    print_line("Sources, ranges, fit errors, and the tiny models for tests: --json")


def _covered(row: dict[str, Any]) -> list[Any]:
    kinds: dict[str, list[str]] = {}
    for term, kind in row["evidence"].items():
        kinds.setdefault(kind, []).append(term)
    measured = ", ".join(kinds.pop("measured", []))
    rest = "; ".join(f"{kind}: {', '.join(terms)}" for kind, terms in kinds.items())
    capacity = row["kv_capacity_tokens"] if row["kv_capacity_tokens"] is not None else "does not fit"
    return [
        row["model"],
        row["gpu"],
        row["profile"],
        measured or "-",
        rest,
        capacity,
        ", ".join(row["other_profiles"]),
    ]
