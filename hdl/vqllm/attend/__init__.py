"""Attention over vector-quantized K and V."""
