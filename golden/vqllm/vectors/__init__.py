"""Words of the blocks of the vector quantizers, with what golden says comes back."""
