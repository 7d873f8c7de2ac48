"""Words of the lanes of other number formats, with what golden says comes back."""
