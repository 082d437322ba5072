"""Base algorithms, one per file."""
