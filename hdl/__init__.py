"""Amaranth generators; ``python -m hdl.build NAME`` writes Verilog. Nothing here imports torch."""
