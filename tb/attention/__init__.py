"""Benches of the attention room."""
