"""Sums of a row: products, scales, end."""
