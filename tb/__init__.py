"""Co-simulation: golden == RTL under random stalls; ``pytest tb/`` does all."""

from senbazuru import require

__distribution__ = "senbazuru"

require("golden", "hdl", "synth")
