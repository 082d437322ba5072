"""Several processes train the clients of one cell, here or over a Ray cluster, and give the bits of one process."""
