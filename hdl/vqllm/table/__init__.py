"""Products by tables of partial sums."""
