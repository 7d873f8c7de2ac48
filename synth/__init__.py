"""Area of generated blocks: ``python -m synth.report NAME`` runs Yosys and ABC."""
