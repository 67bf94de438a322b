# SPDX-License-Identifier: Apache-2.0
"""`sqsim schema`: print the JSON Schema of a scenario or study file."""

from __future__ import annotations

from typing import Annotated

import typer

from sqsim.cli.output import print_json
from sqsim.experiments.file_schemas import scenario_schema, study_schema


def schema_command(
    study: Annotated[bool, typer.Option("--study", help="Print the schema of a study's file instead.")] = False,
) -> None:
    """Print the JSON Schema of a scenario's file, for editors: every key with its allowed values and its default.

    In VS Code (with the YAML extension): `sqsim schema > scenario.schema.json`, and as the first line of a scenario
    `# yaml-language-server: $schema=scenario.schema.json`.
    """
    print_json(study_schema() if study else scenario_schema())
