"""What a run is asked for: the strict scenario, its engine and load, and the agents and tasks that it comes to."""
