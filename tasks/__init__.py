"""Tasks: datasets, partitions and models, one plugin per file."""
