"""Pages: one file for each kind of page."""
