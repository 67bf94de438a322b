# SPDX-License-Identifier: Apache-2.0
"""Importers, one file a format (contract: `base.py`), in the order of recognition: most special first."""

from __future__ import annotations

from sqsim.trace.formats.agentic_mooncake import AgenticMooncake
from sqsim.trace.formats.aiperf_messages import AIPerfMessages
from sqsim.trace.formats.aiperf_records import AIPerfRecords
from sqsim.trace.formats.applied_compute import AppliedCompute
from sqsim.trace.formats.base import Format
from sqsim.trace.formats.claude_code import ClaudeCode
from sqsim.trace.formats.codex import Codex
from sqsim.trace.formats.dynamo import DynamoTrace
from sqsim.trace.formats.har import Har
from sqsim.trace.formats.langfuse import Langfuse
from sqsim.trace.formats.langsmith import LangSmith
from sqsim.trace.formats.mini_swe_agent import MiniSweAgent
from sqsim.trace.formats.mooncake import Mooncake
from sqsim.trace.formats.openai_chat import AnthropicMessages, OpenAIChat
from sqsim.trace.formats.qwen_bailian import QwenBailian
from sqsim.trace.formats.react_text import ReactText
from sqsim.trace.formats.request_csv import RequestCsv
from sqsim.trace.formats.request_log import RequestLog
from sqsim.trace.formats.responses_items import ResponsesItems
from sqsim.trace.formats.served import SglangDump, SqrealLog
from sqsim.trace.formats.spans import OtelSpans
from sqsim.trace.formats.weka import Weka

FORMATS: dict[str, Format] = {
    known.name: known
    for known in (
        SqrealLog(),
        SglangDump(),
        Weka(),
        DynamoTrace(),
        AgenticMooncake(),
        QwenBailian(),
        AppliedCompute(),
        Mooncake(),
        RequestCsv(),
        AIPerfMessages(),
        AIPerfRecords(),
        ClaudeCode(),
        Codex(),
        Har(),
        OtelSpans(),
        Langfuse(),
        LangSmith(),
        RequestLog(),
        ResponsesItems(),
        MiniSweAgent(),
        AnthropicMessages(),
        ReactText(),
        OpenAIChat(),
    )
}
"""By name; `sqtrace/1` itself is no importer."""
