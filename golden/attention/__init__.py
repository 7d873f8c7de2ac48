"""Golden models of what attention engines share."""
