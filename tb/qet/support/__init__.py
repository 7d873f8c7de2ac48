"""Parts that the testbenches of QET share."""
