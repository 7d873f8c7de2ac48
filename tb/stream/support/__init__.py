"""Parts that the benches of the stream room share."""
