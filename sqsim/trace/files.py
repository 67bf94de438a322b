# SPDX-License-Identifier: Apache-2.0
"""Read files as numbered lines of text: plain, gzip or zstd, streamed; every fault names its place."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import zstandard

from sqsim.errors import InputError, RunError, TraceError

_CHUNK = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def compressed(path: Path) -> bool:
    """Whether the file's name ends as that of a zstd-compressed file."""
    return path.suffix == ".zst"


def plain_name(path: Path) -> str:
    """Strip the ending of its compression from a file's name."""
    return path.name.removesuffix(".zst").removesuffix(".gz")


def check_free(path: Path, overwrite: bool) -> None:
    """Refuse to write over a file without permission, or over anything that is not a plain file."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; name a file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe, which a whole file cannot replace; name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another name, or add --overwrite")


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write, compressed if its name ends so; it appears under its name only when complete.

    Directories above it are made. RunError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            if compressed(path):
                # With a checksum, so that no damaged file reads as another trace.
                packer = zstandard.ZstdCompressor(write_checksum=True)
                with packer.stream_writer(file, closefd=False) as sink:
                    yield sink
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}; check directory and disk") from error
    finally:
        with suppress(OSError):  # where it could not be made, it cannot be removed either
            partial.unlink()


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-empty lines of a file with their numbers from 1; raise a `TraceError` where bytes are no text."""
    rest, number = b"", 0
    for chunk in _chunks(path):
        *whole, rest = (rest + chunk).split(b"\n")
        for raw in whole:
            number += 1
            if line := _text(path, number, raw):
                yield number, line
    if line := _text(path, number + 1, rest, last=True):
        yield number + 1, line


def _text(path: Path, number: int, raw: bytes, *, last: bool = False) -> str:
    try:
        # An editor's byte-order mark is no content.
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        if last and error.reason == "unexpected end of data":  # a file that is still written ends anywhere
            return raw[: error.start].decode("utf-8").strip()
        raise TraceError(
            f"byte {error.start + 1} of the line is not UTF-8",
            file=path,
            line=number,
            fix="save the file as UTF-8; text that is compressed with gzip or zstd is read as it is",
        ) from None


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        if not (path.is_file() or path.is_dir()):
            raise TraceError(
                "is a pipe or a device, which cannot be read twice", file=path, fix="write it to a file first"
            )
        if not path.stat().st_size:
            raise TraceError("the file is empty (0 bytes)", file=path, fix="an empty trace is not a trace")
        with path.open("rb") as file:
            raw = iter(lambda: file.read(_CHUNK), b"")
            begins = file.peek(len(_ZSTD))
            if begins.startswith(_GZIP):
                yield from _gunzipped(path, raw)
            elif begins.startswith(_ZSTD) or compressed(path):
                yield from _decompressed(path, raw)
            else:
                yield from raw
    except OSError as error:
        raise TraceError(
            f"cannot be read: {error.strerror}", file=path, fix="check the path and its permissions"
        ) from None


def _gunzipped(path: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    gzip_member = 16 + zlib.MAX_WBITS  # zlib's way to ask for gzip's header and checksum
    member = zlib.decompressobj(gzip_member)
    try:
        for chunk in chunks:
            data = chunk
            while data:
                if member.eof:  # files may be members one after the other, as `cat a.gz b.gz` makes
                    member = zlib.decompressobj(gzip_member)
                yield member.decompress(data)
                data = member.unused_data
    except zlib.error as error:
        raise TraceError(f"not gzip: {error}", file=path, fix="copy or write the file again") from None
    if not member.eof:
        raise TraceError("the gzip stream is cut short", file=path, fix="copy or write the file again")


def _decompressed(path: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    # By hand, as zstandard's stream reader takes the end of a truncated file for the end of its content.
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        for chunk in chunks:
            data = chunk
            while data:
                if frame.eof:  # files may be frames one after the other, as `cat a.zst b.zst` makes
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(data)
                data = frame.unused_data
    except zstandard.ZstdError as error:
        raise TraceError(
            f"not zstd: {error}", file=path, fix="drop .zst from the name if it is plain text"
        ) from None
    if not frame.eof:
        raise TraceError("the zstd stream is cut short", file=path, fix="copy or write the file again")


def sha256(path: Path) -> str:
    """Compute a file's sha256; a directory's covers its files and their names. Empty where nothing can be read."""
    if not (path.is_file() or path.is_dir()):
        return ""  # reading it raises the error that names it and the fix
    total = hashlib.sha256()
    try:
        for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
            if path.is_dir():
                total.update(os.fsencode(file.relative_to(path)))
            with file.open("rb") as opened:
                for chunk in iter(lambda: opened.read(_CHUNK), b""):
                    total.update(chunk)
    except OSError as error:
        raise TraceError(
            f"cannot be read: {error.strerror}", file=path, fix="check the path and its permissions"
        ) from None
    return total.hexdigest()
