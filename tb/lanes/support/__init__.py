"""Vectors of the benches of this room."""
