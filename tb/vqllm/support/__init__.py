"""What the testbenches of VQ-LLM have in common."""
