"""The lane, its phases, and lanes on shared activations."""
