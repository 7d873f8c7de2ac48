"""Vector-quantized matrices (VQ-LLM): shapes, codebooks, accesses, and bit-true products."""
