"""The `sqreal` command, one file a verb: parse, call, print."""
