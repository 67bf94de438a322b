"""The only rooms that know SimPy: one process a task, one for the engine."""
