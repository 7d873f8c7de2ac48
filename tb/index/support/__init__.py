"""Parts that the benches of the index room share."""
