"""Lanes of other number formats."""
