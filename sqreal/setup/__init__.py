"""Installation on this machine, the command that completes it, and tiny models for a CPU."""
