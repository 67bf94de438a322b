"""Cost profiles as data; `sqsim.models.cost.step_cost` reads them."""
