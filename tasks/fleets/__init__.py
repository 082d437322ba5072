"""Fleets: the speed and reliability of clients, one per file."""
