"""Chips by the way in which they work: one file each, found by ``sim.engine.engines``."""
