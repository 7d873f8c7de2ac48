"""The adding of children to a block, and the limits of widths of signals and of a child's ports."""

import contextvars
from collections.abc import Callable

from amaranth import Module
from amaranth.lib import wiring

from hdl.block import Block

SIGNAL_BITS = 1 << 16  # of one signal: Amaranth refuses a wire of more
NET_BITS = 20  # hdl.back.emit numbers the nets of a module in so many bits
PORTS_BITS = (1 << NET_BITS) - 8  # of all inputs but clk and rst, or of all outputs of a child

# What represents a child in its parent; hdl.back.emit sets it for the time of a conversion.
represented: contextvars.ContextVar[Callable[[Block], wiring.Component] | None] = (
    contextvars.ContextVar("represented", default=None)
)


def add(m: Module, name: str, block: Block):
    """Add ``block`` to ``m`` as ``name``; return what the parent connects to.

    The result has the block's members. ResetInserter and EnableInserter around a parent do not
    reach into an emitted child: give a block a port instead.
    """
    represent = represented.get()
    if represent is None:
        setattr(m.submodules, name, block)
        return block
    shared = represent(block)
    block._MustUse__silence = True  # only the first of a kind is elaborated
    setattr(m.submodules, name, shared)
    return shared
