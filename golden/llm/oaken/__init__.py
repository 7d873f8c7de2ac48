"""Oaken on a model: its thresholds."""
