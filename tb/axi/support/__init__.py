"""Parts that the benches of the axi room share."""
