"""Testbenches of the RAM wrappers."""
