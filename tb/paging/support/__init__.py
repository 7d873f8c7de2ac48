"""What the benches of the paging room share."""
