"""What the testbenches of QET have in common."""
