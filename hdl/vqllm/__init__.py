"""VQ-LLM: engines for vector-quantized weights and K and V."""
