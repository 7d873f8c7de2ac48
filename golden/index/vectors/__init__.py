"""Words of the blocks of the index room, with what golden says comes back."""
