"""The behaviour of a whole chip with a language model: time, energy, bytes, and what binds."""

from senbazuru import require

__distribution__ = "senbazuru"

require("golden")
