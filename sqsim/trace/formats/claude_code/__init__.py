# SPDX-License-Identifier: Apache-2.0
"""Claude Code sessions: `~/.claude/projects/<slug>/<session>.jsonl`, one event a line (FORMATS.md).

`lines.py` reads events, `chain.py` the events of one agent into steps, `rewinds.py` follows parentUuid, `sub_agents.py`
finds the call that started each, `compactions.py` puts a compaction's own call before the reset it made, `copies.py` leaves out
what a resumed session repeats, `usage.py` mends partial usage, `families.py` ties files together.
"""

from __future__ import annotations

from sqsim.trace.formats.claude_code.format import ClaudeCode

__all__ = ["ClaudeCode"]
