"""Faults in a block: made, planted, found, or proved to be none."""
