"""Oaken's KV-cache engines: quantizer, dequantizer, paged memory management."""
