# SPDX-License-Identifier: Apache-2.0
"""Import what a model server saw: requests with token ids, cached tokens and times.

`log.py` reads the log of sqreal's recorder, `dump.py` SGLang's own request dumps (pickles, which `pickles.py` reads
without executing them). `threads.py` finds the request that each request continues, `prefixes.py` the beginnings that
conversations share, and `tasks.py` makes each conversation a task.
"""

from __future__ import annotations

from sqsim.trace.formats.served.dump import SglangDump
from sqsim.trace.formats.served.log import SqrealLog

__all__ = ["SglangDump", "SqrealLog"]
