"""Words of the floating-point blocks, with what golden says comes back."""
