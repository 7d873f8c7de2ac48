"""Oaken: online-offline KV-cache quantization and the paged cache it is stored in."""
