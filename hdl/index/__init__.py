"""Generators of what index-based schemes share: nearest centroid, histogram, look-up, reduction."""
