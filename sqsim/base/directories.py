# SPDX-License-Identifier: Apache-2.0
"""Directories that are written whole or not at all: filled under a temporary name, then renamed into place."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqsim.errors import RecordError, RunError


def check_place(directory: str | Path) -> None:
    """Raise a RecordError where a directory neither exists nor can be made; it names the place and the fix."""
    target = Path(directory)
    if not os.path.lexists(target):
        above = next(parent for parent in target.absolute().parents if parent.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise RecordError(f"{target}: no directory can be made in {above}; choose another --output-dir")
    elif not target.is_dir():
        raise RecordError(f"{target}: exists and is not a directory; choose another --output-dir")


@contextmanager
def whole_directory(directory: str | Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory to fill, and rename it to `directory` once the block has ended without an error.

    Until then `directory` stays as it was. The caller checks first whether it may be replaced. RunError: it cannot be
    written.
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
    """Move `target` to `old` and `fresh` to `target`; if that fails, put the old one back."""
    try:
        # Without `overwrite`, a directory that appeared meanwhile stays: a rename replaces only an empty one.
        if target.is_symlink() or (overwrite and target.exists() and any(target.iterdir())):
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(target):
            old.rename(target)
        raise


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
