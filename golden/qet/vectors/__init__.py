"""Words of the blocks of QET, with what golden says comes back."""
