"""Words of the blocks of Oaken, with what golden says comes back."""
