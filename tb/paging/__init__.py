"""Benches of the paging room."""
