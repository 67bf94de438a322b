"""The agent's side: turn loop, context, aux thread, policies. Pure: no clock, no I/O, no SimPy."""
