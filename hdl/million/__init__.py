"""RTL of MILLION: attention over a product-quantized KV cache."""
