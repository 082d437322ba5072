"""Specification of cells: settings, presets, boards, and the composition of a cell from overrides."""
