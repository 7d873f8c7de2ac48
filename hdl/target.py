"""The technology that blocks are built for. Each gives the same words in the same cycles.

| target | queues of 3 words and more |
|---|---|
| asic | flip-flops, and a multiplexer before the output |
| fpga | RAM of LUTs, which is read at any time |

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


def queue_storage(depth: int) -> str:
    """``storage`` of a StreamFifo of few words."""
    return "lut" if current() == "fpga" and depth >= _LEAST else "flipflop"
