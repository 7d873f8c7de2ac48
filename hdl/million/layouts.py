"""Payloads that the blocks of the product-quantized attention share."""

from amaranth.hdl import signed
from amaranth.lib import data

from golden.fp16.format import FP16
from golden.million.config import MillionConfig, PqShape, RateShape
from golden.million.format import Op, Status
from hdl.kinds import BITS, NUMBER, index_of, mask_of
from hdl.ports import Payload

ENTRIES_BITS = 13  # of the number of entries of a codebook, 1..4096
EXPONENT_SHAPE = signed(5)  # of the scale of a codebook, a power of two
KEYS_BITS = 16  # of a number of tokens, 0..32768
SINKS_BITS = 7
RING_BITS = 9  # of a place in the ring of recent tokens
RECENT_BITS = 10  # of a number of recent tokens, 0..512
BEAT_LAST = (1, "final beat of the packet")

# Fields that an op does not use are ignored. Fixed widths: out-of-range values must arrive.
REQUEST_LAYOUT = Payload(
    op=(4, "golden.million.format.Op", Op),
    tag=(8, "comes back with the status", BITS),
    sequence=(8, "number of the sequence", index_of("sequences")),
    layer=(8, "layer of the model", index_of("layers")),
    entries=(ENTRIES_BITS, "LOAD: entries of each codebook, 1..2**bits", NUMBER),
    exponent_k=(EXPONENT_SHAPE, "LOAD: log2 of the scale of K's codebooks, -8..15"),
    exponent_v=(EXPONENT_SHAPE, "LOAD: log2 of the scale of V's codebooks, -8..15"),
)
STATUS_LAYOUT = Payload(
    tag=(8, "tag of the request", BITS),
    op=(4, "golden.million.format.Op of the request", Op),
    status=(4, "golden.million.format.Status", Status),
    sequence=(8, "OPEN: the new sequence; else the request's", index_of("sequences")),
)


def beat_layout(lanes: int) -> data.StructLayout:
    """Some elements of a vector."""
    return Payload(
        word=(data.ArrayLayout(FP16.bits, lanes), "elements, FP16", FP16),
        last=BEAT_LAST,
    )


def code_layout(pq: PqShape, rate: RateShape) -> Payload:
    """Codes of ``keys`` keys per beat."""
    codes = data.ArrayLayout(data.ArrayLayout(pq.bits, pq.subspaces), rate.keys)
    return Payload(
        code=(codes, "codes of each key, subspace 0 first", index_of("entries of the codebook")),
        last=(1, "ends the keys"),
    )


def entry_layout(pq: PqShape, rate: RateShape) -> Payload:
    """Entries of the tables of ``queries`` queries; macs / sub subspaces per transfer.

    A packet follows the words of the codebook: for each part, for each row of the codebook, for
    each query.
    """
    words = data.ArrayLayout(FP16.bits, rate.group(pq))
    return Payload(
        word=(words, "entries, FP16, one per subspace of the part", FP16),
        end=(1, "final transfer of the part"),
        last=(1, "final transfer of the tables"),
        bad=(
            rate.queries,
            "with last: the query has a NaN, an infinity or an infinite entry",
            mask_of("queries"),
        ),
    )


def query_layout(lanes: int) -> data.StructLayout:
    """Some elements of a query, with what its scores take in addition."""
    return Payload(
        word=(data.ArrayLayout(FP16.bits, lanes), "elements times 1/sqrt(head_dim), FP16", FP16),
        slope=(FP16.bits, "of the query, the same in each beat: added per token of distance", FP16),
    )


def score_layout(rate: RateShape) -> Payload:
    """A score for each query of ``keys`` keys."""
    words = data.ArrayLayout(data.ArrayLayout(FP16.bits, rate.queries), rate.keys)
    return Payload(word=(words, "FP16 words, key by key, one per query", FP16), last=BEAT_LAST)


def slopes_layout(queries: int) -> data.StructLayout:
    """The facts of a group of queries that are known when the last of its beats has passed."""
    return Payload(
        slope=(data.ArrayLayout(FP16.bits, queries), "slope of each query", FP16),
        bad=(queries, "mask of the queries with a NaN or an infinity", mask_of("queries")),
    )


def verdict_layout(queries: int) -> data.StructLayout:
    """The faults that a group of queries has suffered."""
    return Payload(
        nonfinite=(1, "a query, or a slope, has a NaN or an infinity"),
        bad_code=(1, "a code lies beyond the entries of the codebook"),
        overflow=(1, "a table entry or a score lies beyond FP16"),
    )


def slot_bits(config: MillionConfig) -> int:
    """Bits of the number of a (sequence, layer, head)."""
    return max(1, (config.slots - 1).bit_length())
