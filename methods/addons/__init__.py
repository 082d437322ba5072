"""Add-ons, one per file; ``fedspan list methods --compat`` shows which algorithms each one works with."""
