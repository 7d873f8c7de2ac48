"""Testbenches of the blocks of QET."""
