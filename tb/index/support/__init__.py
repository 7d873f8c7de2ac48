"""What the benches of the index room share."""
