"""Testbenches of the stream blocks."""
