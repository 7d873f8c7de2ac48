"""What the RAMs do, cycle by cycle."""
