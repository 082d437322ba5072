"""Datasets, one per file."""
