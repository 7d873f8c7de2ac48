"""What the benches of the kllm room share."""
