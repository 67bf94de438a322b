# SPDX-License-Identifier: Apache-2.0
"""The figures of one request of an agent, as its server reports them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Served:
    """The server's report of one request: times in seconds of the run, and tokens."""

    submit_s: float
    prompt_tokens: int
    admit_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    cached_tokens: int = 0  # of the prompt, at its first admission
    computed_tokens: int = 0  # by prefill, over all admissions
    output_tokens: int = 0
    resident_tokens: int = 0  # KV tokens that it left on the server
    retractions: int = 0
    prefill_chunks: int = 0
    replica: int = 0
    failure: str | None = None  # name of the failure that ended it before its output was complete
    text: str | None = None  # the output of a model that was not scripted

    @property
    def kv_reads(self) -> int:
        """Resident tokens read, summed over decoded tokens; the first token comes out of the prefill."""
        decoded = max(0, self.output_tokens - 1)
        return decoded * self.prompt_tokens + decoded * (decoded + 1) // 2
