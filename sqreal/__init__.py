"""sqreal: run the same scenarios on a real SGLang server. Under construction: README.md says what runs."""
