"""Words of the blocks of MILLION, with what golden says comes back."""
