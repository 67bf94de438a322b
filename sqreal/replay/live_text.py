# SPDX-License-Identifier: Apache-2.0
"""Text of the tokens that a live model writes, decoded by the server or by the model's tokenizer file.

Recorded tokens never need it. The output of a live aux thread does, and so does the phrase that starts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from sqreal.errors import InstallError, ServerError
from sqreal.server.client import Generation
from sqreal.server.server import Server
from sqsim.agent.aux_thread import TRIGGER
from sqsim.errors import ScenarioError

_ANSWER_S = 60.0
NEED = "policy.decisions: live needs the model's tokenizer to read what it writes"


@dataclass(frozen=True, slots=True)
class LiveText:
    """`trigger`: the ids of the phrase that asks for a decision. `reader`: the decoder's name, for the record."""

    trigger: list[int]
    reader: str
    read: Callable[[Generation], str]


def live_text(server: Server) -> LiveText:
    """Find a decoder for this server; a ScenarioError before the run where there is none."""
    if server.info.skip_tokenizer:
        return _by_file(Path(server.info.tokenizer) / "tokenizer.json", server.url)
    return LiveText(_asked(server.url), "the server's tokenizer", _said)


def _said(answer: Generation) -> str:
    if answer.text is None:
        raise ServerError(f"the answer to request {answer.meta.get('id')} holds no text; {NEED}")
    return answer.text


def _asked(url: str) -> list[int]:
    """Tokenize the phrase on the server, without the tokens that begin a text."""
    try:
        answer = httpx.post(
            f"{url}/tokenize", json={"prompt": TRIGGER, "add_special_tokens": False}, timeout=_ANSWER_S
        )
        answer.raise_for_status()
        return _checked(answer.json()["tokens"], url)
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{url}/tokenize: {error or type(error).__name__}; {NEED}") from error


def _by_file(path: Path, url: str) -> LiveText:
    if not path.is_file():
        raise ScenarioError(
            f"{NEED}; the server at {url} runs with --skip-tokenizer-init and there is no {path} here: start it without "
            "that flag, put the model's tokenizer.json there, or set policy.decisions: scripted"
        )
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - comes with SGLang; nothing else needs it
    except ImportError as error:
        raise InstallError(
            f"{NEED}, and the package tokenizers is not installed; run: pip install tokenizers"
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # its own exceptions have no common class
        raise ScenarioError(f"{path}: is not a tokenizer ({error}); {NEED}") from error
    ids = _checked(tokenizer.encode(TRIGGER, add_special_tokens=False).ids, str(path))

    def read(answer: Generation) -> str:
        return str(tokenizer.decode(answer.output_ids, skip_special_tokens=True))

    return LiveText(ids, str(path), read)


def _checked(ids: list[int], source: str) -> list[int]:
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise ServerError(f"{source}: gives {ids!r} for {TRIGGER!r}, which are not token ids; {NEED}")
    return ids
