# SPDX-License-Identifier: Apache-2.0
"""Import Langfuse exports: observations, traces with their observations, pages of its API, or ingestion batches.

`records.py` reads these forms, `format.py` makes observations of them; sessions are made as those of spans.
"""

from __future__ import annotations

from sqsim.trace.formats.langfuse.format import Langfuse

__all__ = ["Langfuse"]
