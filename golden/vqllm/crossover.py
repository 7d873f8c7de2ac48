"""Cycles of a quantized matrix with T tokens, and those of 16-bit weights. Pure Python.

All engines have the same multipliers and the same memory port. Each resource works at its full
rate, and all of them overlap, so the cycles of an engine are those of its slowest resource.

| engine | memory | look-ups | products |
|---|---|---|---|
| gemv | codes for each group of ``batch`` tokens | for each group | a group in a cycle |
| gemm | codes once | once | a group in a cycle |
| plain | 16 bits of each weight, once | none | a group in a cycle |
"""

import dataclasses
import math
from collections.abc import Callable

from golden.config import Config, bounded, real
from golden.vqllm.config import MatrixShape

_WORD_BITS = 16  # of a weight that is not quantized


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine(Config):
    """The hardware that works in a cycle: ``macs * batch`` multipliers."""

    macs: int = bounded(32, 1, 4096, "weights of a beat")
    batch: int = bounded(1, 1, 64, "tokens side by side")
    port_bits: int = bounded(512, 8, 4096, "of the memory port")
    look_cycles: float = real(1.0, 1, 64, "mean cycles of the look-ups of a beat")


def gemv_cycles(shape: MatrixShape, engine: Engine, tokens: int) -> dict[str, int]:
    """Cycles by resource: the weights are streamed and looked up for each group."""
    groups = math.ceil(tokens / engine.batch)
    one = gemm_cycles(shape, engine, 1)
    return {name: groups * cycles for name, cycles in one.items()}


def gemm_cycles(shape: MatrixShape, engine: Engine, tokens: int) -> dict[str, int]:
    """Cycles by resource: each beat of weights is held while the groups pass."""
    groups, beats = math.ceil(tokens / engine.batch), _beats(shape, engine)
    return {
        "memory": math.ceil((shape.code_bits + shape.codebook_bits) / engine.port_bits),
        "look-ups": math.ceil(beats * engine.look_cycles),
        "products": beats * groups,
    }


def plain_cycles(shape: MatrixShape, engine: Engine, tokens: int) -> dict[str, int]:
    """Cycles by resource of 16-bit weights, each held while the groups pass."""
    bits = shape.rows * shape.columns * _WORD_BITS
    groups = math.ceil(tokens / engine.batch)
    return {
        "memory": math.ceil(bits / engine.port_bits),
        "products": _beats(shape, engine) * groups,
    }


def slowest(cycles: dict[str, int]) -> tuple[str, int]:
    """The resource that takes most cycles, the first of equals, and its cycles."""
    return max(cycles.items(), key=lambda item: item[1])


def least_tokens(
    shape: MatrixShape, engine: Engine, wins: Callable[[int, int, int], bool], most: int = 64
) -> int | None:
    """The least T up to ``most`` from which on ``wins(gemv, gemm, plain)`` holds, or None."""
    found = None
    for tokens in range(most, 0, -1):
        each = (
            slowest(cycles(shape, engine, tokens))[1]
            for cycles in (gemv_cycles, gemm_cycles, plain_cycles)
        )
        if not wins(*each):
            break
        found = tokens
    return found


def _beats(shape: MatrixShape, engine: Engine) -> int:
    return shape.rows * math.ceil(shape.columns / engine.macs)
