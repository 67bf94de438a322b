"""sqreal: run the same scenarios on a real SGLang server. Empty until the real side lands."""
