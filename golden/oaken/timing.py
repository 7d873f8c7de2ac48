"""Timing of Oaken's blocks, as functions of their numbers."""

from golden.timing import Timing

__all__ = [
    "decomposer",
    "dequant_engine",
    "group_dequantizer",
    "group_quantizer",
    "quant_engine",
    "scale_buffer",
    "sparse_chunks",
    "token_parameters",
    "tree_cycles",
    "zero_insert",
    "zero_remove",
]


def tree_cycles(lanes: int) -> int:
    """Cycles of a tree of maxima over ``lanes`` elements, four inputs per register stage."""
    return -(-(lanes - 1).bit_length() // 2)


def decomposer() -> Timing:
    """A beat of groups and codes leaves three cycles after its values came."""
    return Timing(latency=3, unit="beat")


def group_quantizer(lanes: int, scale_stages: int, queue_cycles: int) -> Timing:
    """``queue_cycles``: latency of the queue of scales, 1 in flip-flops and 2 in a RAM."""
    scale = tree_cycles(lanes) + 1 + scale_stages + queue_cycles
    return Timing(
        latency=5, unit="beat", delays=(("from a vector's last beat on scan to i", scale),)
    )


def quant_engine(lanes: int, scale_stages: int) -> Timing:
    """From a vector's last beat to its first codes."""
    header = decomposer().latency + tree_cycles(lanes) + 1 + scale_stages + 1
    # The lanes' queue is a RAM, so that it takes 2 cycles where the header's takes 1.
    dense = header + 1 + group_quantizer(lanes, scale_stages, 2).latency
    return Timing(
        latency=dense,
        start="a vector's last beat",
        end="dense",
        unit="beat",
        delays=(("from a vector's last beat to its header", header),),
    )


def zero_remove() -> Timing:
    """From the last beat of a block to the block."""
    return Timing(latency=3, unit="beat")


def sparse_chunks() -> Timing:
    return Timing(latency=1, unit="chunk")


def zero_insert() -> Timing:
    """From a word of the sparse records to the first beat that it completes."""
    return Timing(latency=3, start="a word", unit="beat")


def group_dequantizer(stages: int) -> Timing:
    return Timing(latency=stages, unit="beat")


def token_parameters(stages: int) -> Timing:
    return Timing(latency=stages, start="scale", unit="token")


def dequant_engine(scale_stages: int, stages: int) -> Timing:
    """Scales and records are prepared next to each other, then ``stages`` registers."""
    ahead = max(zero_insert().latency, scale_stages + 1)
    return Timing(latency=ahead + stages + 1, start="a request", unit="beat")


def scale_buffer() -> Timing:
    return Timing(latency=2)
