"""A language model on the Verilated accelerator: ``python -m senbazuru.talk``."""

from senbazuru import require

require("golden", "hdl", "synth", "tb")
