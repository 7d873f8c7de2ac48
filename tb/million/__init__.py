"""Benches of the million room."""
