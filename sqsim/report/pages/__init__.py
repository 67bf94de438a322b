"""Pages: one file a kind of page."""
