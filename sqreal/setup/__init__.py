"""What is installed on this machine, what mends the rest, and tiny models for a CPU."""
