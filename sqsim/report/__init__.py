"""HTML pages from records and metrics. Nothing here computes a result."""
