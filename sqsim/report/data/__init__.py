"""What pages read: sources, groups of runs, and what each number is called."""
