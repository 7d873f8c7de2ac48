"""The effect of quantization methods on a real language model: ``python -m golden.llm.eval``."""
