"""sqsim: replay recorded agent traces through a simulated SGLang under KV-eviction policies."""

__version__ = "0.2.0"
