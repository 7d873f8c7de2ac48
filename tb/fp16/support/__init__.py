"""Parts that the benches of the fp16 room share."""
