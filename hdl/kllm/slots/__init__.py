"""Slots of values: their memory, and ports to and from the host."""
