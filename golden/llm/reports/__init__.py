"""What the arithmetic costs, part by part: commands that print tables."""
