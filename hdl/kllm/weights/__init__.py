"""Weights from memory to lanes."""
