# SPDX-License-Identifier: Apache-2.0
"""The `sqsim` command: parse, call, print. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 the run failed, 2 the input is wrong.
"""

from __future__ import annotations

import typer

from sqsim.cli.calibrate import calibrate_command
from sqsim.cli.compare import compare_command
from sqsim.cli.lockstep import lockstep_command
from sqsim.cli.output import Version
from sqsim.cli.plan import plan_command
from sqsim.cli.region import region_command
from sqsim.cli.report import report_command
from sqsim.cli.run import run_command
from sqsim.cli.schema import schema_command
from sqsim.cli.study import study_command
from sqsim.cli.support import support_command
from sqsim.cli.sweep import sweep_command
from sqsim.cli.trace import app as trace_app

app = typer.Typer(
    name="sqsim",
    help="What would this KV-eviction policy do to my agents on my GPU, and how sure are you?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(trace_app, name="trace")


@app.callback()
def _main(
    version: Version = False,
) -> None:
    pass


app.command("run")(run_command)
app.command("study")(study_command)
app.command("sweep")(sweep_command)
app.command("plan")(plan_command)
app.command("region")(region_command)
app.command("schema")(schema_command)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.command("calibrate")(calibrate_command)
app.command("support")(support_command)
app.command("lockstep")(lockstep_command)
