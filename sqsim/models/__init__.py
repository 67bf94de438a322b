"""The serving system's side: hardware, memory, scheduler and cost. Pure: no clock, no I/O of its own, no SimPy."""
