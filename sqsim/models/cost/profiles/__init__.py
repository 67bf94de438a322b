"""Cost profiles as data files, which `sqsim.models.cost.step_cost` reads."""
