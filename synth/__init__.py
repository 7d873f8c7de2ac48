"""Area of generated blocks: Yosys and ABC behind ``python -m synth.report NAME``."""
