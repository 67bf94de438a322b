# SPDX-License-Identifier: Apache-2.0
"""Codex rollouts: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`, one line an item of a thread's history.

A line is `{timestamp, type, payload}`. `response_item` lines are the model's output and input, in OpenAI's Responses
form; `event_msg` lines repeat them for the screen, and only those of type `token_count` count here; `compacted`
replaces the context. Source of the form: codex-rs/protocol of openai/codex, and public rollouts.
"""

from __future__ import annotations

from sqsim.trace.formats.codex.format import Codex

__all__ = ["Codex"]
