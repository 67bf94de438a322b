"""What every room may use: strict parts of a scenario, keyed random draws, YAML and JSON, directories, workers."""
