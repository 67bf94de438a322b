# SPDX-License-Identifier: Apache-2.0
"""Paths given by Python code or on a command line, checked before the system is asked about them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sqsim.errors import InputError


def given_path(value: object, error: type[InputError], fix: str) -> Path:
    """Make a Path of a str or path. `error`: it is neither, holds a NUL, or is longer than the system takes."""
    if not isinstance(value, str | os.PathLike):
        raise error(f"{value!r} is no path; {fix}")
    path = Path(value)
    if "\0" in str(path):
        raise error(f"{str(path)!r} holds a NUL character, which no path may; {fix}")
    try:
        os.lstat(path)
    except OSError as fault:
        if fault.errno == errno.ENAMETOOLONG:
            raise error(f"{str(path)[:60]}...: {fault.strerror}; {fix}") from None
    return path
