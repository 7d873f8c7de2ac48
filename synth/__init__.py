"""Area of generated blocks: ``python -m synth.report NAME`` runs Yosys and ABC."""

from senbazuru import require

__distribution__ = "senbazuru"

require("golden", "hdl")
