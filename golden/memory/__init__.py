"""The words that the RAMs give, cycle by cycle."""
