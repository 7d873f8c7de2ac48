"""What a whole chip would do with a language model: time, energy, bytes, and what binds."""
