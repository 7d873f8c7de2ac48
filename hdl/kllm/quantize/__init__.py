"""Phases of the quantizer, one block each."""
