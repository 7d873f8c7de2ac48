"""Timing of Oaken's blocks, as functions of their numbers."""

from collections.abc import Sequence
from fractions import Fraction

from golden.paging.config import RecordShape
from golden.paging.timing import mmu, page_table_cycles
from golden.timing import Timing


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
    """The timing from a vector's last beat to its first codes."""
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


def zero_insert() -> Timing:
    """The timing from a word of the sparse records to the first beat that it completes."""
    return Timing(latency=3, start="a word", unit="beat")


def zero_remove() -> Timing:
    """The timing from a block's last beat to its sparse bytes."""
    return Timing(latency=3, unit="beat")


def token_writer(block_beats: int, blocks: int) -> Timing:
    """The timing from a record's last block to its size.

    Where a block comes as one beat, the scale words of a record take a cycle of their own.
    """
    interval = max(Fraction(block_beats), 1 + Fraction(1, blocks))
    return Timing(latency=1, start="sparse", end="record", unit="block", interval=interval)


def token_split(ahead: int) -> Timing:
    """The timing from a word to the first block that it completes; the longer queue is a RAM."""
    return Timing(latency=4 if ahead >= 4 else 3, start="i", end="dense", unit="block")


def dequant_engine(scale_stages: int, stages: int) -> Timing:
    """Scales and records are prepared next to each other, then ``stages`` registers."""
    ahead = max(zero_insert().latency, scale_stages + 1)
    return Timing(latency=ahead + stages + 1, start="a request", unit="beat")


def kv_read_cycles(scale_stages: int, stages: int, sparse_beats: int, memory: int) -> int:
    """Cycles from a READ of one token of one head to its first beat of ``o``.

    The longer of two paths counts. The head's description goes from the MMU to the decoder. The
    first sparse word comes from memory, ``memory`` cycles after its burst; a queue of more than 32
    words is a RAM, a cycle slower. All three bursts may be in flight at once.
    """
    front = 4  # entry, queue, thresholds, place
    looks = page_table_cycles("READ", 0) + 1
    scale = front + 2 + looks  # the scale's look-up is answered
    described = scale + 3 * looks + 2  # look-ups of the head's start, dense and sparse
    burst = described - 2  # of the sparse record
    word = burst + memory + (2 if sparse_beats > 32 else 1)
    return max(
        described + dequant_engine(scale_stages, stages).latency,
        word + zero_insert().latency + stages + 1,
    )


def kv_head_cycles() -> int:
    """Most cycles from one head's first beat to the next one's, where a head has fewer beats."""
    return 15


def kv_append_cycles(slots: int, words: int, memory: int) -> int:
    """Cycles from one APPEND's status to the next one's in a train, without a second page.

    ``words``: memory words of the last record, the scales. Each other record has at most 6. A write
    is answered ``memory`` cycles after its last word. The MMU writes one vector at a time: BEGIN,
    then for each record its size, EXTEND and its write. The answers, COMMIT and the status follow.
    """
    begin = 1 + page_table_cycles("BEGIN", slots) + 1
    record = 1 + page_table_cycles("EXTEND", slots) + 2
    end = memory + words + page_table_cycles("COMMIT", slots) + 6
    return begin + record * slots + end


def kv_append_latency(lanes: int, scale_stages: int, slots: int, words: int, memory: int) -> int:
    """Cycles from a lone vector's last beat to its status; its heads have at most 4 beats each.

    The header of the quantization engine starts the APPEND in the MMU.
    """
    header = quant_engine(lanes, scale_stages).delay("from a vector's last beat to its header")
    return header + 5 + kv_append_cycles(slots, words, memory)


def kv_token_read_cycles(
    kv: RecordShape, scale_stages: int, stages: int, beats: int, pieces: int, memory: int
) -> int:
    """Cycles from a READ of one token in order token to its first beat of ``o``.

    ``beats``: words of the queue in front of the records. ``pieces``: cycles in which the bytes of
    the first record's scales and first block enter the window. ``memory`` as above.
    """
    front = 4  # entry, queue, thresholds, place
    word = front + mmu(kv, (beats,)).latency + memory
    scale = word + pieces - 1 + token_split(0).latency
    return scale + dequant_engine(scale_stages, stages).latency - 1


def kv_group_cycles() -> int:
    """Most cycles from one group's first beat to the next one's, where a group has fewer beats."""
    return 10


def kv_token_reads_cycles(groups: int) -> int:
    """Cycles from one READ's first beat to the next one's in order token, if a READ has fewer.

    So long the look-ups of a READ take, one after the other, while places are free and memory
    answers soon.
    """
    return 13 + kv_group_cycles() * groups


def kv_token_append_cycles(words: Sequence[int], memory: int) -> int:
    """Cycles from one APPEND's status to the next one's in order token, in a train.

    The MMU binds, and no record takes a second page. ``words``: memory words of each record. While
    they move, the MMU places the next record.
    """
    slots, moved = len(words), 0
    placed = 1 + page_table_cycles("BEGIN", slots) + 1
    for count in words:
        placed += 1 + page_table_cycles("EXTEND", slots) + 2
        moved = max(placed, moved) + count
    return moved + memory + page_table_cycles("COMMIT", slots) + 6


def kv_token_append_latency(
    lanes: int, scale_stages: int, beats: int, slots: int, words: int, memory: int
) -> int:
    """Cycles from a lone vector's last beat to its status in order token.

    ``beats``: of the vector. ``words``: memory words of the last record. Its size is known when the
    last block's sparse bytes have come; all records before it are written by then.
    """
    codes = quant_engine(lanes, scale_stages).latency + beats - 1  # the last ones
    sized = codes + zero_remove().latency + token_writer(1, 1).latency
    placed = sized + 2 + 1 + page_table_cycles("EXTEND", slots) + 2
    return placed + words + memory + page_table_cycles("COMMIT", slots) + 6
