# SPDX-License-Identifier: Apache-2.0
"""Import request logs: one model call a line or a file, with its whole prompt (LiteLLM, OpenHands, proxies).

`exchange.py` reads one call, `threads.py` finds the call that each call continues, `format.py` makes each thread a task.
"""

from __future__ import annotations

from sqsim.trace.formats.request_log.format import RequestLog

__all__ = ["RequestLog"]
