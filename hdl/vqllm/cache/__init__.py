"""Codebooks on the chip: cache, banks, loader, shares."""
