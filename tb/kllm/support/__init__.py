"""Parts that the benches of the kllm room share."""
