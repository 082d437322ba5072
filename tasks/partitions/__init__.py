"""Partitions of the training images over clients, one per file."""
