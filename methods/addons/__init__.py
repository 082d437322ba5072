"""Add-ons, one per file; each works on any algorithm that its docstring does not exclude."""
