"""Words of the blocks of KLLM, with what golden says comes back."""
