# SPDX-License-Identifier: Apache-2.0
"""Tell what a span is by the conventions of its instrumentation.

Sources: OpenTelemetry GenAI (`gen_ai.operation.name`), OpenInference (`openinference.span.kind`), OpenLLMetry
(`traceloop.span.kind`, `llm.request.type`), the AI SDK (`ai.operationId`), Monocle (`span.type`), Langfuse's SDK.
"""

from __future__ import annotations

from typing import Any

from sqsim.trace.formats.dialects.values import first_name
from sqsim.trace.formats.spans.observed import Kind

_BY_VALUE: dict[str, dict[str, Kind]] = {
    "gen_ai.operation.name": {
        "chat": "model",
        "text_completion": "model",
        "generate_content": "model",
        "completion": "model",
        "execute_tool": "tool",
        "invoke_agent": "agent",
        "invoke_workflow": "agent",
        "embeddings": "other",
        "create_agent": "other",
        "retrieval": "other",
    },
    "openinference.span.kind": {"LLM": "model", "TOOL": "tool", "AGENT": "agent"},
    "langfuse.observation.type": {
        "generation": "model",
        "tool": "tool",
        "agent": "agent",
        "embedding": "other",
    },
    "traceloop.span.kind": {"tool": "tool", "agent": "agent"},
    "llm.request.type": {"chat": "model", "completion": "model", "embedding": "other", "rerank": "other"},
    "ai.operationId": {
        "ai.generateText.doGenerate": "model",
        "ai.streamText.doStream": "model",
        "ai.generateObject.doGenerate": "model",
        "ai.streamObject.doStream": "model",
        "ai.toolCall": "tool",
        "ai.generateText": "agent",
        "ai.streamText": "agent",
        "ai.generateObject": "agent",
        "ai.streamObject": "agent",
    },
    "span.type": {
        "inference": "model",
        "inference.framework": "model",
        "inference.modelapi": "model",
        "agentic.tool.invocation": "tool",
        "agentic.invocation": "agent",
    },
}
_SIGNS = (
    "gen_ai.",
    "llm.",
    "openinference.",
    "traceloop.",
    "ai.operationId",
    "span.type",
    "langfuse.observation.",
)
_SESSIONS = (
    "session.id",
    "gen_ai.conversation.id",
    "langfuse.session.id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
    "ai.telemetry.metadata.sessionId",
    "langsmith.trace.session_id",
)


def has_signs(attributes: Any) -> bool:
    """Whether attributes follow any of the conventions."""
    return any(isinstance(key, str) and key.startswith(_SIGNS) for key in attributes)


def kind_of(attributes: dict[str, Any]) -> Kind:
    """Tell what a span is; what no convention names is `other`."""
    for key, values in _BY_VALUE.items():
        value = attributes.get(key)
        if isinstance(value, str):
            found = values.get(value) or values.get(value.upper()) or values.get(value.lower())
            if found is not None:
                return found
    if attributes.get("gen_ai.operation.name") or attributes.get("openinference.span.kind"):
        return "other"
    if attributes.get("gen_ai.request.model") or attributes.get("gen_ai.response.model"):
        return "model"
    if attributes.get("gen_ai.tool.name") or attributes.get("gen_ai.tool.call.id"):
        return "tool"
    if attributes.get("gen_ai.agent.name") or attributes.get("agent_name"):
        return "agent"
    return "other"


def session_of(attributes: dict[str, Any]) -> str:
    """Return the session that a span names, empty if it names none."""
    return first_name(attributes, *_SESSIONS)
