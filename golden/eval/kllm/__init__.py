"""What golden.eval.methods.kllm learns offline: codebooks, scales, indices, offsets."""
