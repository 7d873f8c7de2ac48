"""What golden.llm.methods.kllm learns offline: codebooks, scales, indices, offsets."""
