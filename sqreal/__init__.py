"""sqreal: run the same scenarios on a real SGLang server (docs/real-server.md)."""
