"""What the benches of the million room share."""
