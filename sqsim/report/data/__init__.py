"""What pages read: sources, groups of runs, and the name of each number."""
