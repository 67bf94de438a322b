"""Cost profiles as data; `sqsim.models.cost` reads them."""
