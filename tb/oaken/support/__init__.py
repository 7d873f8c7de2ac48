"""Parts that the benches of the oaken room share."""
