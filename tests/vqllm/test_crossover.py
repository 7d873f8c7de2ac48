"""Cycles of gemv, gemm and 16-bit weights, counted by hand.

Shown to fail with:

- codes counted once in gemv; look-ups counted for each group in gemm
- the last group left out; the codebooks left out
- the first T that wins, although a later one loses
"""

from golden.vqllm.config import NAMED, MatrixShape
from golden.vqllm.crossover import (
    Engine,
    gemm_cycles,
    gemv_cycles,
    least_tokens,
    plain_cycles,
    slowest,
)

SHAPE = MatrixShape(rows=10, columns=80, vq=NAMED["aqlm2x8"])  # 3 beats of 32 in a row
ENGINE = Engine(macs=32, batch=2, port_bits=64, look_cycles=1.5)


def test_by_hand():
    # 10 rows of 10 vectors of 2 codes of 8 bits; 2 codebooks of 256 entries of 8 words
    memory = (10 * 10 * 2 * 8 + 2 * 256 * 8 * 16) // 64
    assert gemm_cycles(SHAPE, ENGINE, 5) == {"memory": memory, "look-ups": 45, "products": 90}
    assert gemv_cycles(SHAPE, ENGINE, 5) == {
        "memory": 3 * memory, "look-ups": 135, "products": 90
    }  # fmt: skip
    assert plain_cycles(SHAPE, ENGINE, 5) == {"memory": 10 * 80 * 16 // 64, "products": 90}
    assert slowest({"a": 1, "b": 3, "c": 3}) == ("b", 3)


def test_least_tokens():
    shape = MatrixShape(rows=1536, columns=576, vq=NAMED["aqlm2x8"])
    engine = Engine(macs=32, port_bits=64, look_cycles=2.0)
    # Memory: 18 bits a vector and the codebooks; look-ups take two cycles a beat.
    assert least_tokens(shape, engine, lambda gemv, gemm, plain: gemm < gemv) == 2
    # 16-bit weights: 8 cycles a beat of memory. So gemv loses above 4 tokens, gemm never.
    assert least_tokens(shape, engine, lambda gemv, gemm, plain: plain < gemv) == 5
    assert least_tokens(shape, engine, lambda gemv, gemm, plain: plain < gemm) is None
    assert least_tokens(shape, engine, lambda gemv, gemm, plain: plain <= gemm) == 8
    # A condition that fails again at a larger T does not count before it.
    assert least_tokens(shape, engine, lambda gemv, gemm, plain: gemv < plain, most=3) == 1
    assert least_tokens(shape, engine, lambda gemv, gemm, plain: gemv < plain) is None
