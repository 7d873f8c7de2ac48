"""The results of the AXI blocks: words read, and the answers of the register file."""
