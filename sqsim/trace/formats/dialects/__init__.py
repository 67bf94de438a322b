# SPDX-License-Identifier: Apache-2.0
"""Translate prompts and answers of any model API into OpenAI chat messages, which `messages.py` reads.

`reading.py` tells the dialects apart; `items.py` reads OpenAI Responses items, `parts.py` messages made of typed parts
(OpenTelemetry GenAI, Gemini, Bedrock Converse, Vercel AI), `langchain.py` LangChain's messages. Anthropic's blocks stay as they are.
"""

from __future__ import annotations

from sqsim.trace.formats.dialects.items import chat_of_items, is_item
from sqsim.trace.formats.dialects.reading import chat_answer, chat_messages, parsed

__all__ = ["chat_answer", "chat_messages", "chat_of_items", "is_item", "parsed"]
