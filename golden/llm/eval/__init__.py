"""What quantization methods do to a real language model: ``python -m golden.llm.eval``."""
