"""Claims of the papers about whole chips, each next to what the simulator gives."""
