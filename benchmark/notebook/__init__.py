"""FedSpan from Python: run cells, get results as data frames, compare and plot methods."""
