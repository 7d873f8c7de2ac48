"""Requests that share a chip: arrivals, batches, pages of K and V, and what the users see."""
