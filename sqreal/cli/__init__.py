"""The `sqreal` command, one file for each verb: parse, call, print."""
