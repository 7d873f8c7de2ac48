"""Generators of what attention engines share: softmax and its parts."""
