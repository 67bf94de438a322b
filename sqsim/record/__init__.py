"""What a run leaves behind: the record, its files, and the numbers computed from it."""
