"""A real SGLang server: start or attach, send requests, stop."""
