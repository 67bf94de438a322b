# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the commands: options, tables, JSON, progress, and files that appear whole."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sqsim import __version__
from sqsim.base.plain_text import shown
from sqsim.cli.early_interrupt import INTERRUPT_LINE, INTERRUPTED
from sqsim.errors import SqsimError
from sqsim.policies.base import Policy
from sqsim.policies.registry import BUILT_IN, POLICIES
from sqsim.record.evidence import evidence_lines
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import LOADS
from sqsim.scenario.scenario import Scenario
from sqsim.trace.files import check_free, written_whole

_LINE_S = 15.0

_ANY_WIDTH = 1000
"""Columns of a table in a pipe or file: wider than any of our tables."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(__version__)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress on stderr.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace earlier results at the output path.")]


_UsageError: Any = typer.BadParameter.__base__
"""typer's usage error; newer versions of typer no longer share click's."""
_WRONG_NAMES = {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL}
"""Errors of the system that mean a wrong path, not a failed write."""


def keys_to_set(incomplete: str) -> list[str]:
    """Complete the argument of `--set`: a scenario's keys, and each policy by its name."""
    keys = [*Scenario.model_fields, *(f"engine.{key}" for key in Engine.model_fields)]
    keys += [f"load.{key}" for kind in LOADS.values() for key in kind.model_fields]
    policies = _usable_policies()
    keys += [f"policy.{key}" for kind in policies.values() for key in kind.model_fields if key != "name"]
    found = [f"{key}=" for key in dict.fromkeys(keys)] + [f"policy.name={name}" for name in policies]
    return [each for each in found if each.startswith(incomplete)]


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a key of the scenario, such as engine.cache=session; may repeat.",
        autocompletion=keys_to_set,
    ),
]


def _usable_policies() -> dict[str, type[Policy]]:
    """Find the policies that can be imported, and print nothing: completion writes on the user's prompt."""
    found = dict(BUILT_IN)
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
        suppress(Exception),  # a package's metadata may be broken
    ):
        for name in POLICIES:
            with suppress(Exception, SystemExit):  # a package's own code may raise anything
                found[name] = POLICIES[name]
    return found


def print_json(value: Any) -> None:
    """Print one JSON value on stdout; keys keep their order, and NaN is refused."""
    print(json.dumps(value, indent=2, allow_nan=False))  # noqa: T201 - a command's result


def print_line(text: str) -> None:
    """Print a line on stdout."""
    print(text)  # noqa: T201 - a command's result


def print_evidence(evidence: Iterable[Mapping[str, Any]]) -> None:
    """Print the evidence that the numbers rest on, a line each."""
    for line in evidence_lines(evidence):
        print_line(f"- {line}")


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on stdout; numbers are right-aligned and rounded (--json prints them exactly)."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        number = bool(rows) and all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    # A pipe or a file has no width limit.
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=_ANY_WIDTH)
    console.print(table)


def print_pairs(title: str, pairs: Sequence[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line."""
    print_rows(title, ["metric", "value"], [[name, shown(value)] for name, value in pairs])


class _Lines:
    """Progress for a log file: a line every `_LINE_S` seconds, so short work writes none."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first_s = self._last_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= _LINE_S:
            self._last_s = now_s
            left_s = (now_s - self._first_s) / done * (total - done) if done else 0
            left = f", about {left_s:.0f} s left" if done and left_s else ""
            print(f"{self._what}: {done} of {total}{left}", file=sys.stderr, flush=True)  # noqa: T201 - progress


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show progress on stderr: a bar in a terminal, else a line every `_LINE_S` seconds; nothing when quiet."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def write_text(path: Path, text: str, overwrite: bool) -> None:
    """Write a file so that it holds either all of the text or its earlier content."""
    check_free(path, overwrite)
    with written_whole(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # the text may name a file that is not UTF-8


def run_to_exit(app: typer.Typer) -> NoReturn:
    """Run the command line; every error is one line on stderr and an exit code."""
    if sys.stderr is None:  # closed by the caller: errors go nowhere
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open to the end
    if sys.stdout is None:
        raise SystemExit(
            _failed("stdout is closed; nobody would see the result, send it to /dev/null instead", 1)
        )
    # Do not fail because of a name that this terminal cannot show.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it is ignored, and stays ignored
            signal.signal(number, signal.default_int_handler)  # end as on an interrupt, with clean-up
    raise SystemExit(_run(app))


def _run(app: typer.Typer) -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except SqsimError as error:
        return _failed(str(error), error.exit_code)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "sqsim"
        problem = " ".join(error.format_message().split()).removesuffix(".")
        return _failed(f"{command}: {problem}; see {command} --help", 2) if problem else 2
    except BrokenPipeError:  # the reader of our output has closed it
        _forget_output()
        return 1
    except OSError as error:
        _forget_output()
        return _failed(
            f"{error.filename or 'output'}: {error.strerror}; check path, permissions and disk",
            2 if error.filename is not None and error.errno in _WRONG_NAMES else 1,
        )
    except KeyboardInterrupt:
        code = INTERRUPTED
    # typer turns an interrupt into this exit code without a message.
    return _failed(INTERRUPT_LINE, code) if code == INTERRUPTED else code or 0


def _failed(problem: str, code: int) -> int:
    print(f"error: {problem}", file=sys.stderr)  # noqa: T201 - a command's error
    return code


def _forget_output() -> None:
    """Discard the text left in stdout's buffer, so that Python does not try to write it again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
