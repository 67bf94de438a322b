"""What became of one request of an agent, as its server reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Served:
    """What became of one request, as its server tells it: seconds of the run, and tokens."""

    submit_s: float
    prompt_tokens: int
    admit_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    cached_tokens: int = 0  # of the prompt, at its first admission
    computed_tokens: int = 0  # by prefill, over all admissions
    output_tokens: int = 0
    resident_tokens: int = 0  # KV that it left
    retractions: int = 0
    prefill_chunks: int = 0
    replica: int = 0
    failure: str | None = None  # the name of what ended it before its output was complete
    text: str | None = None  # what a model wrote by itself

    @property
    def kv_reads(self) -> int:
        """Resident tokens read, summed over decoded tokens; the first token comes out of the prefill."""
        decoded = max(0, self.output_tokens - 1)
        return decoded * self.prompt_tokens + decoded * (decoded + 1) // 2
