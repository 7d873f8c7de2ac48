"""Generators of the paged memory of token vectors."""
