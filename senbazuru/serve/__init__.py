"""An OpenAI-compatible endpoint before the Verilated accelerator: ``python -m senbazuru.serve``."""

from senbazuru import require

require("golden", "hdl", "synth", "tb")
