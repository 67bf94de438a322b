"""What happens in simulated time: the only rooms that know SimPy."""
