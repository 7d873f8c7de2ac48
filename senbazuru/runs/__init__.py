"""Commands for users: ``python -m senbazuru.runs.NAME``."""

from senbazuru import require

require("golden", "hdl", "synth", "tb")
