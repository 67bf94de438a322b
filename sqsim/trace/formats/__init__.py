# SPDX-License-Identifier: Apache-2.0
"""Importers, one file a format (contract: `base.py`), in the order of recognition: most special first."""

from __future__ import annotations

from sqsim.trace.formats.base import Format
from sqsim.trace.formats.claude_code import ClaudeCode
from sqsim.trace.formats.codex import Codex
from sqsim.trace.formats.mini_swe_agent import MiniSweAgent
from sqsim.trace.formats.mooncake import Mooncake
from sqsim.trace.formats.openai_chat import AnthropicMessages, OpenAIChat
from sqsim.trace.formats.react_text import ReactText
from sqsim.trace.formats.request_log import RequestLog
from sqsim.trace.formats.weka import Weka

FORMATS: dict[str, Format] = {
    known.name: known
    for known in (
        Weka(),
        Mooncake(),
        ClaudeCode(),
        Codex(),
        RequestLog(),
        MiniSweAgent(),
        AnthropicMessages(),
        ReactText(),
        OpenAIChat(),
    )
}
"""By name; `sqtrace/1` itself is no importer."""
