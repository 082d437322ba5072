"""Methods: base algorithms and add-ons, one plugin per file."""
