# SPDX-License-Identifier: Apache-2.0
"""Schema of `study.json` as the page reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sqsim.base.strict_json import no_constant
from sqsim.errors import RecordError
from sqsim.report.data.measures import Value
from sqsim.report.data.sources import Kind

STUDY_SCHEMA = "sqsim-study/1"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class PointPart(_Part):
    """Run of a panel; `record` is its directory below the study's, where it was kept."""

    labels: dict[str, Value]
    metrics: dict[str, Value]
    record: str | None = None


class PanelPart(_Part):
    """Panel. `published: sidequest` asks for the SideQuest paper's numbers next to it (see published.py)."""

    id: str
    kind: Kind
    title: str
    note: str = ""
    evidence: str = ""
    points: tuple[PointPart, ...] = ()
    published: Literal["sidequest"] | None = None
    model: str | None = None
    gpu: str | None = None


class StudyPart(_Part):
    """The whole file."""

    title: str
    asked: str = ""
    commands: tuple[str, ...] = ()
    panels: tuple[PanelPart, ...] = ()


def read_study(file: Path) -> StudyPart:
    """Read a study's results. RecordError names the file and its fault."""
    try:
        content = json.loads(file.read_bytes(), parse_constant=no_constant)
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != STUDY_SCHEMA:
            raise RecordError(f"{file}: schema is {schema!r}, this version reads {STUDY_SCHEMA!r}")
        return StudyPart.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)[:3]
        reason = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in faults)
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise RecordError(f"{file}: cannot be read as a study ({reason}); run the study again")
