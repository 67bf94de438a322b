"""How near the simulation is to a real server: recorded schedules, step times, fitted profiles, what is covered."""
