"""A run's record, its files, and the metrics computed from it."""
