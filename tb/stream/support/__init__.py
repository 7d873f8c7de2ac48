"""What the benches of the stream room share."""
