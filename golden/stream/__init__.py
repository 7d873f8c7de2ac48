"""What streams do to sequences of words."""
