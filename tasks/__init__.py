"""Tasks: datasets, partitions, models and fleets, one plugin per file."""
