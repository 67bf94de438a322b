# SPDX-License-Identifier: Apache-2.0
"""Advice in errors, in the words of its reader: a flag on the command line is an argument in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqsim.errors import SqsimError

FLAGS = {
    "--output-dir": "directory",
    "--overwrite": "overwrite=True",
}
"""Flags whose functions take an argument of the same meaning."""


@contextmanager
def other_words(words: Mapping[str, str]) -> Iterator[None]:
    """Replace words in the message of an SqsimError that the body raises."""
    try:
        yield
    except SqsimError as error:
        text = str(error)
        for word, other in words.items():
            text = text.replace(word, other)
        error.args = (text,)
        raise
