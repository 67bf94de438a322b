"""How many GPUs, which policy, which settings, for these agents and this SLO: a search over whole runs."""
