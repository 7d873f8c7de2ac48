"""Testbenches of the blocks of VQ-LLM."""
