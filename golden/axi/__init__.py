"""What the AXI blocks give: words read, and the answers of the register file."""
