"""Engines of a vector-quantized matrix: core, control, one and several vectors."""
