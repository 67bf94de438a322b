"""Agent traces: what was recorded, how it is stored, where it comes from."""
