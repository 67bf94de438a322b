# SPDX-License-Identifier: Apache-2.0
"""Choose the page by what is given: a plan, a region, a sweep, a directory of runs, or runs and studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqsim.report.pages.plan_page import plan_page
from sqsim.report.pages.region_page import region_page
from sqsim.report.pages.run_index import index_page
from sqsim.report.pages.runs_page import build_page, check_name
from sqsim.report.pages.sweep_page import sweep_page


def any_page(sources: Sequence[Path]) -> str:
    """Build one self-contained HTML page. RecordError and InputError as for `build_page`."""
    if len(sources) != 1:
        return build_page(sources)
    (only,) = sources
    check_name(only)
    if (only / "plan.json").is_file():
        return plan_page(only)
    if (only / "region.json").is_file():
        return region_page(only)
    if (only / "sweep.json").is_file():
        return sweep_page(only)
    if only.is_dir() and not any(
        (only / name).exists() for name in ("run.json", "study.json", "tasks.parquet")
    ):
        return index_page(only)
    return build_page(sources)
