"""QET: compare-swap matrix quantization."""
