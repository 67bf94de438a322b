# SPDX-License-Identifier: Apache-2.0
"""Import HAR recordings of calls to model APIs, streamed or whole.

`bodies.py` reads the texts of requests and responses, `streams.py` puts streamed answers together, `format.py` makes calls
of entries; sessions are threaded as those of a request log.
"""

from __future__ import annotations

from sqsim.trace.formats.har.format import Har

__all__ = ["Har"]
