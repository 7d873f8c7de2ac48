"""Commands that find constants of chips from measured times, and say how well they predict."""
