"""Records, checkpoints and provenance, and how they are written."""
