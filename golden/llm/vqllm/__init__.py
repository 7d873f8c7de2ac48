"""VQ-LLM on a model: its packs."""
