"""The technology that blocks are built for. Each gives the same words in the same cycles.

| | asic | fpga |
|---|---|---|
| queues of 3 words and more | flip-flops and a multiplexer | RAM of LUTs, read at any time |
| RAM with a register at its output | a macro | block RAM, from BLOCK_BITS on (synth.fpga) |
| divisions and roots, one word at a time | a pipeline | a few rows that take turns |

``built_for`` chooses it for all that is elaborated within. No configuration names it. So a block
has one description, one golden model and one bench for both.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from golden.config import ConfigError

TARGETS = ("asic", "fpga")
# Two words need a multiplexer of one LUT per bit; a RAM of LUTs takes 1.5 per bit at any depth.
_LEAST = 3
BLOCK_BITS = 512  # of a RAM; a block has 18,432
LEAST_TURNS = 3  # cycles: before the digits, all digits, after them

_target: ContextVar[str] = ContextVar("target", default="asic")


@contextmanager
def built_for(target: str) -> Iterator[None]:
    """ConfigError: no such target."""
    if target not in TARGETS:
        raise ConfigError(f"target must be one of {', '.join(TARGETS)}, not {target!r}")
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)


def current() -> str:
    """The target that is built for now."""
    return _target.get()


def has_turns(stages: int) -> bool:
    """An operator of so many cycles whose user waits for each result has a few rows, in turns."""
    return current() == "fpga" and stages >= LEAST_TURNS


def queue_storage(depth: int) -> str:
    """``storage`` of a StreamFifo of few words."""
    return "lut" if current() == "fpga" and depth >= _LEAST else "flipflop"
