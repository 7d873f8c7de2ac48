"""Timing of the blocks of VQ-LLM, as functions of their numbers."""

from fractions import Fraction

from golden.index.timing import tree_levels
from golden.timing import Timing
from golden.vqllm.config import AttendShape

__all__ = [
    "ROW_ROUNDING",
    "ROW_SCALING",
    "attend_bound",
    "attend_pass",
    "codebook_cache",
    "dequantizer",
    "exchange",
    "gemv_core",
    "layout_buffer",
    "row_finish",
    "row_sums",
]

ROW_ROUNDING = 2  # cycles of the rounding of a sum
ROW_SCALING = 2  # cycles of its product with the scale of its row


def codebook_cache() -> Timing:
    """Tiers, reads, words, queue in two cycles, answer: of a beat on chip without conflicts."""
    return Timing(latency=6, start="look", end="entry", unit="beat")


def dequantizer() -> Timing:
    """Sum, rounding."""
    return Timing(latency=2, unit="beat")


def exchange(pieces: int, in_place: bool = False) -> Timing:
    """To the first of a beat's ``pieces`` words; in place, a cycle for each step comes first."""
    return Timing(
        latency=pieces + 1 if in_place else 1,
        interval=Fraction(pieces),
        unit="beat",
        words=(("i", 1), ("o", pieces)),
    )


def layout_buffer(pieces: int) -> Timing:
    """A beat is written while it waits; then read, and its first word shown."""
    return Timing(
        latency=2, interval=Fraction(pieces), unit="beat", words=(("i", 1), ("o", pieces))
    )


def row_sums(macs: int) -> Timing:
    """Words, products in two cycles, their sum, the row's, queue in two cycles."""
    return Timing(latency=3 + tree_levels(macs) + 3, start="w", end="sum", unit="beat")


def row_finish(scaled: bool) -> Timing:
    """Rounding, and the scale of the row."""
    latency = ROW_ROUNDING + ROW_SCALING * scaled
    return Timing(latency=latency, start="sum", end="y", unit="row")


def gemv_core(macs: int, stages: int) -> Timing:
    """Of the last beat of a row, all of whose entries are on chip, without conflicts."""
    parts = [codebook_cache(), row_sums(macs)]
    parts += [dequantizer()] * (stages > 1)
    latency = sum(part.latency for part in parts)
    return Timing(latency=latency, start="code", end="sum", unit="beat")


def attend_pass(shape: AttendShape, tokens: int, entries: int) -> dict[str, int]:
    """Cycles of a pass of vq_attention by resource; codebooks and codes share the memory port."""
    return {
        "memory": shape.book_words(entries) + shape.code_words(tokens),
        "tokens": tokens,
    }


def attend_bound(shape: AttendShape, tokens: int, entries: int) -> int:
    """Fewest cycles of a KV head among others: the passes of K and of V, one after another."""
    return 2 * shape.passes * max(attend_pass(shape, tokens, entries).values())
