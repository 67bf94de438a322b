"""What every room may use: the base of strict objects."""
