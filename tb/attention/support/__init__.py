"""What the benches of the attention room share."""
