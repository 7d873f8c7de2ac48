"""Benches of the index room."""
