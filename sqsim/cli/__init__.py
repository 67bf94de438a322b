"""The `sqsim` command, one file a verb: parse, call, print."""
