"""Kits written and run under their simulators, and faults planted in them."""
