"""Boards (grids with their tables) and protocols (training recipes), as YAML; pages made from them."""
