"""Blocks of Oaken by name."""

from hdl.registry import Registered

__all__ = ["BLOCKS"]

BLOCKS: dict[str, Registered] = {}
