"""The simulation of a scenario in simulated time; the only room that imports SimPy."""
