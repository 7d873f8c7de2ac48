"""Floating-point operators and conversions, IEEE 754-2019, rounding to nearest even."""
