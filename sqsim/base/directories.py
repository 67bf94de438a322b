"""Directories that are whole or not there: filled under another name, moved into place by a rename."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqsim.errors import RecordError, RunError


def check_place(directory: str | Path) -> None:
    """Refuse a place where no directory is or can be made: RecordError names it and the fix."""
    target = Path(directory)
    if not os.path.lexists(target):
        above = next(parent for parent in target.absolute().parents if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise RecordError(f"{target}: no directory can be made in {above}; choose another --output-dir")
    elif not target.is_dir():
        raise RecordError(f"{target}: exists and is not a directory; choose another --output-dir")


@contextmanager
def whole_directory(directory: str | Path, overwrite: bool) -> Iterator[Path]:
    """A directory to fill, which takes its name when it is whole; until then the name holds what it held before.

    Whether it may be replaced is for the caller to check first. RunError: it cannot be written.
    """
    target = Path(os.path.abspath(directory))  # noqa: PTH100  (a symbolic link is replaced by name, not followed)
    mark = secrets.token_hex(4)
    fresh, old = (target.parent / f".{target.name}.{mark}.{state}" for state in ("partial", "old"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        yield fresh
        _swap(fresh, target, old, overwrite)
        sync(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"{target}: cannot be written: {reason}; free some space, or choose another --output-dir"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if old.is_symlink():
            old.unlink()
        elif target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _swap(fresh: Path, target: Path, old: Path, overwrite: bool) -> None:
    """Move what stands at `target` to `old` and `fresh` into its place, or put back what stood there."""
    try:
        # Without `overwrite` what appeared meanwhile stays: a rename replaces an empty directory only.
        if target.is_symlink() or (overwrite and target.exists() and any(target.iterdir())):
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(target):
            old.rename(target)
        raise


def sync(path: Path) -> None:
    """Have a file or a directory on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
