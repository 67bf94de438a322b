"""What the commands share: options, tables, JSON, progress, and files that appear whole."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from sqsim.errors import SqsimError
from sqsim.policies.registry import POLICIES
from sqsim.record.evidence import evidence_lines
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import LOADS
from sqsim.scenario.scenario import Scenario
from sqsim.trace.files import check_free, written_whole

_LINE_S = 15.0

_ANY_WIDTH = 1000
"""Columns: wider than any table of ours."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(__version__)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")]


_INTERRUPTED = 130
_UsageError: Any = typer.BadParameter.__base__
"""typer's own; newer versions of it no longer share click's."""
_WRONG_NAMES = {errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL}
"""What the system says of a path that can only have been given wrongly."""


def keys_to_set(incomplete: str) -> list[str]:
    """Complete what `--set` takes: a scenario's keys, and each policy by its name."""
    keys = [*Scenario.model_fields, *(f"engine.{key}" for key in Engine.model_fields)]
    keys += [f"load.{key}" for kind in LOADS.values() for key in kind.model_fields]
    keys += [f"policy.{key}" for kind in POLICIES.values() for key in kind.model_fields if key != "name"]
    found = [f"{key}=" for key in dict.fromkeys(keys)] + [f"policy.name={name}" for name in POLICIES]
    return [each for each in found if each.startswith(incomplete)]


def print_json(value: Any) -> None:
    """One JSON value on stdout; keys in their order, no NaN."""
    print(json.dumps(value, indent=2, allow_nan=False))  # noqa: T201 - a command's result


def print_line(text: str) -> None:
    """A line on stdout."""
    print(text)  # noqa: T201 - a command's result


def print_evidence(evidence: Iterable[Mapping[str, Any]]) -> None:
    """On what the numbers above rest, a line each."""
    for line in evidence_lines(evidence):
        print_line(f"- {line}")


def print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stdout; numbers to the right, and shortened for reading (--json has them exact)."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        number = bool(rows) and all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    # A pipe or a file has no width to keep to.
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=_ANY_WIDTH)
    console.print(table)


def print_pairs(title: str, pairs: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one a line."""
    print_rows(title, ["metric", "value"], [[name, shown(value)] for name, value in pairs])


class _Lines:
    """Progress for a log file: a line every `_LINE_S` seconds, so that short work writes none."""

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
    """A bar on stderr when that is a terminal, now and then a line when it is not, nothing when quiet."""
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
    """Write a file so that its name holds all of the text or what it held before."""
    check_free(path, overwrite)
    with written_whole(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # a file's name may be no UTF-8


def run_to_exit(app: typer.Typer) -> NoReturn:
    """Run the command line; every error is one line on stderr and an exit code."""
    if sys.stderr is None:  # closed by the caller: there is nobody to complain to
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open to the end
    if sys.stdout is None:
        raise SystemExit(
            _failed("stdout is closed; nobody would see the result, send it to /dev/null instead", 1)
        )
    # A name that this terminal cannot show is no reason to fail.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored, and that stays so
            signal.signal(number, signal.default_int_handler)  # whoever ends us lets us tidy up
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
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say to it
        _forget_output()
        return 1
    except OSError as error:
        _forget_output()
        return _failed(
            f"{error.filename or 'output'}: {error.strerror}; check path, permissions and disk",
            2 if error.filename is not None and error.errno in _WRONG_NAMES else 1,
        )
    except KeyboardInterrupt:
        code = _INTERRUPTED
    # typer turns an interrupt into this code itself, and says nothing.
    return _failed("interrupted; nothing was written", code) if code == _INTERRUPTED else code or 0


def _failed(problem: str, code: int) -> int:
    print(f"error: {problem}", file=sys.stderr)  # noqa: T201 - a command's error
    return code


def _forget_output() -> None:
    """What stdout still holds cannot be delivered, and must not be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
