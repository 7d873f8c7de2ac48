"""What the benches of the oaken room share."""
