"""AXI4 and AXI4-Lite: read port, register file, and standard port names for every block."""
