"""Experiments of many runs: studies, sweeps, intervals, plans, regions."""
