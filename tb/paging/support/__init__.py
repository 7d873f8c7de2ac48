"""Parts that the benches of the paging room share."""
