"""A matrix from memory: walk, loads, beats."""
