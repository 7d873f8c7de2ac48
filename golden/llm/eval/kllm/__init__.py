"""The values that golden.llm.methods.kllm learns offline: codebooks, scales, indices, offsets."""
