"""The costs of the arithmetic, part by part: commands that print tables."""
