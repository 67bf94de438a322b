"""Comparison of runs: side by side, by token accounting, measured with simulated."""
