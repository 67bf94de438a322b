# SPDX-License-Identifier: Apache-2.0
"""Import spans of model calls: OpenTelemetry GenAI, OpenInference, OpenLLMetry, Vercel AI and Monocle.

`forms.py` reads the files (OTLP JSON, dumps of spans), `kinds.py`, `prompts.py` and `counts.py` the conventions. `observed.py`
is what every tracing tool's importer makes of its records (Langfuse and LangSmith too), `tree.py` makes sessions of it.
"""

from __future__ import annotations

from sqsim.trace.formats.spans.format import OtelSpans

__all__ = ["OtelSpans"]
