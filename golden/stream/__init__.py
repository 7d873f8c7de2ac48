"""The sequences of words that the stream blocks make of others."""
