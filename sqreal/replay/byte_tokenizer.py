# SPDX-License-Identifier: Apache-2.0
"""Byte tokenizer for the tiny models: id 3 + b is byte b; 0, 1 and 2 are padding, begin and end of a text."""

from __future__ import annotations

import json
from pathlib import Path

FIRST, BEGIN, END = 3, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<begin>{{ message.role }}\n{{ message.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<begin>assistant\n{% endif %}"
)
"""Messages between special tokens, as in ChatML, so that a border between messages is one between tokens."""

_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that byte-level BPE leaves unchanged
_NAMES = {byte: chr(byte) for byte in _SHOWN} | {
    byte: chr(256 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in _SHOWN)
}


def encode(text: str) -> list[int]:
    return [FIRST + byte for byte in text.encode()]


def decode(ids: list[int]) -> str:
    return bytes(token - FIRST for token in ids if FIRST <= token < FIRST + 256).decode(errors="replace")


def write_tokenizer(directory: Path) -> Path:
    """Write tokenizer.json and the files that transformers needs with it, including a chat template."""
    special = ["<pad>", "<begin>", "<end>"]
    vocab = {text: token for token, text in enumerate(special)}
    vocab |= {name: FIRST + byte for byte, name in _NAMES.items()}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": text,
                "special": True,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            }
            for token, text in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    names = dict(zip(("pad_token", "bos_token", "eos_token"), special, strict=True))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", **names, "chat_template": CHAT_TEMPLATE}, indent=1
        ),
        encoding="utf-8",
    )
    return directory
