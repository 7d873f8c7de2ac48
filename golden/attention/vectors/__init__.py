"""Words of the blocks of the attention room, with what golden says comes back."""
