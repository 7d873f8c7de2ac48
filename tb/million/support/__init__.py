"""Parts that the benches of the million room share."""
