# SPDX-License-Identifier: Apache-2.0
"""The exceptions of sqsim. Every error that a user can cause is one of these; nothing else is caught.

(The command line also turns an OSError of the operating system into one line: `run_to_exit` of sqsim/cli/output.py.)

SqsimError                    exit code 1
├── InputError                exit code 2: the input is wrong
│   ├── ScenarioError         a scenario file, a `--set`, or a combination that does not exist
│   ├── PolicyError           a policy's class, package or method: names them, and task and turn where it ran
│   ├── TraceError            a trace file: names file, line and field
│   └── RecordError           a run directory that is missing, incomplete or of another version
├── RunError                  exit code 1: the run itself failed
├── MissingPackageError       exit code 1: an optional package is not installed
└── Interrupted               exit code 130: the user ended it; finished results are kept
"""

from __future__ import annotations

from pathlib import Path


class SqsimError(Exception):
    """Base of every error that sqsim raises on purpose."""

    exit_code = 1


class InputError(SqsimError):
    """The input cannot be used as it is."""

    exit_code = 2


class ScenarioError(InputError):
    """A scenario is wrong; the message names the key, the value and the fix."""


class PolicyError(InputError):
    """A policy cannot be used as it is, or broke the contract of policies during a run."""


class RecordError(InputError):
    """A run directory cannot be read as a record."""


class TraceError(InputError):
    """A trace is wrong. The message reads `FILE:LINE: FIELD: what is wrong; the fix`."""

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem, self.file, self.line, self.field, self.fix = problem, file, line, field, fix
        place = "" if file is None else f"{file}:" if line is None else f"{file}:{line}:"
        where = "" if field is None else f"{field}:"
        text = " ".join(part for part in (place, where, problem) if part)
        super().__init__(text if fix is None else f"{text}; {fix}")


class RunError(SqsimError):
    """A run started and could not be finished."""


class MissingPackageError(SqsimError):
    """An optional package is not installed; the message names the command that installs it."""


class Interrupted(SqsimError):  # noqa: N818 - not an error of the program or the input
    """The user ended long work; its finished part is kept."""

    exit_code = 130
