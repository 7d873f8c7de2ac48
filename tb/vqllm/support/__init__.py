"""Parts that the testbenches of VQ-LLM share."""
