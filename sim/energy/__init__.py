"""Energy and area from our own netlists: measured events, their node, and what a program counts."""
