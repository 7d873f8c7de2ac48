"""What the benches of the axi room share."""
