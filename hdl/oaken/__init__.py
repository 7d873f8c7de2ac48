"""Oaken's KV cache: quantization and dequantization engines in front of the paged memory."""
