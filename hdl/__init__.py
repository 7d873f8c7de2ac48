"""Amaranth generators; ``python -m hdl.build NAME`` writes Verilog. Nothing here imports torch."""

from senbazuru import require

__distribution__ = "senbazuru"

require("golden")
