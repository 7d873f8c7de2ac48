"""The way from a component to files: RTLIL, Verilog, what describes it, and delivery."""
