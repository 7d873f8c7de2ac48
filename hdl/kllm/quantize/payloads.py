"""The payloads that the phases of the quantizer hand to each other."""

import dataclasses

from amaranth import Const, Mux, Value

from golden.config import Config
from golden.fp16.format import FP16, FP32
from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus, Norm
from hdl.kinds import NUMBER, index_of, mask_of
from hdl.kllm.engine import ROW, SLOT_LENGTH_BITS, SLOT_ROW_BITS
from hdl.ports import Payload

STATUS_BITS = len(CommandStatus)
_ROWS_BITS = SLOT_ROW_BITS + 1  # rows of the longest token
_TAIL = range(ROW_ELEMENTS)  # last element of the last row
ALL = (1 << ROW_ELEMENTS) - 1  # elements of a row


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmQuantizePhaseConfig(Config):
    """A phase without sizes: the payloads of the engines give every width."""


_SLOT = (8, "activation slot", index_of("slots"))
_WORDS = (ROW, "16 FP16 words, element 0 first", FP16)
_LENGTH = (SLOT_LENGTH_BITS, "elements of the token", NUMBER)
_ROWS = (_ROWS_BITS, "rows of the token", NUMBER)
_ROW = (SLOT_ROW_BITS, "row within the token", index_of("rows"))
_LIVE = (ROW_ELEMENTS, "mask of the elements within the length", mask_of("elements"))
_KIND = (TokenKind, "TokenKind")
_STATUS = (STATUS_BITS, "golden.kllm.isa.CommandStatus so far", CommandStatus)
_S = (FP16.bits, "s of the token, FP16", FP16)
_TAIL_ELEMENT = (_TAIL, "last element of the last row")

row_layout = Payload(word=_WORDS)
row_request_layout = Payload(row=(16, "row of the vector memory", index_of("rows")))
word_layout = Payload(word=(FP16.bits, "FP16 word", FP16))

_token_parts = {
    "kind": _KIND,
    "dead": (1, "nothing is read"),
    "touches": (1, "its slot is written, be it as not valid"),
    "status": _STATUS,
    "rows": _ROWS,
    "length": _LENGTH,
    "slot": _SLOT,
    "norm": (2, "golden.kllm.isa.Norm", Norm),
    "epsilon": (FP32.bits, "addend of the norm, FP32", FP32),
    "upper": (FP16.bits, "OFFLINE: upper threshold, FP16", FP16),
    "lower": (FP16.bits, "OFFLINE: lower threshold, FP16", FP16),
}

# A command, decoded and checked. ``tokens``, ``rows``: 1 or more unless dead.
quantize_job_layout = Payload(
    **_token_parts,
    src=(16, "first row of the first token", index_of("rows")),
    stride=(16, "rows from one token to the next", NUMBER),
    tokens=(8, "tokens, 1 or more unless dead", NUMBER),
    k_max=(16, "outliers from the max tree", NUMBER),
    k_min=(16, "outliers from the min tree", NUMBER),
)

# A token, in flight from the first pass to the second.
token_layout = Payload(
    **_token_parts,
    row=(16, "first row of the token", index_of("rows")),
    end=(1, "last token of its command"),
)

# Rows of one token in the first pass.
first_pass_layout = Payload(
    integer=(1, "its largest element is wanted"), rows=_ROWS, tail=_TAIL_ELEMENT
)

integer_row_layout = Payload(word=_WORDS, live=_LIVE, last=(1, "last row of the token"))

token_status_layout = Payload(status=(STATUS_BITS, "golden.kllm.isa.CommandStatus", CommandStatus))

# One side's outliers: key beyond this one, or (tie) equal to it and at or before its position.
bound_layout = Payload(
    on=(1, "the side has outliers"),
    tie=(1, "elements with an equal key are outliers, up to the position"),
    key=(FP16.bits, "hdl.fp16.compare.total_order_key of the bound", NUMBER),
    position=(SLOT_LENGTH_BITS, "position of the bound", index_of("elements")),
)
_bounds = {
    "largest": (bound_layout, "bound of the largest words"),
    "smallest": (bound_layout, "bound of the smallest words"),
}

# What the trees found of a token.
found_layout = Payload(bad=(1, "NaN or infinity: the token has no scale"), s=_S, **_bounds)

# A token of the second pass.
second_pass_layout = Payload(
    kind=_KIND,
    rows=_ROWS,
    tail=_TAIL_ELEMENT,
    slot=_SLOT,
    norm=(1, "its statistics are wanted"),
    s=_S,
    **_bounds,
)

# A row of the second pass.
split_row_layout = Payload(
    kind=_KIND,
    row=_ROW,
    last=(1, "last row of the token"),
    slot=_SLOT,
    norm=(1, "statistics of the token are wanted"),
    s=_S,
    live=_LIVE,
    word=_WORDS,
    beyond=(ROW_ELEMENTS, "mask of the outliers; of a codebook of its words", mask_of("elements")),
    nonfinite=(1, "an element within the length is NaN or infinite"),
)

# What goes with a row through clustering or division.
tag_layout = Payload(
    slot=_SLOT,
    row=_ROW,
    outlier=(ROW_ELEMENTS, "mask of the outliers", mask_of("elements")),
    live=_LIVE,
    norm=(1, "statistics of the token are wanted"),
    last=(1, "last row of the token"),
)

# A row to cluster, or to divide.
beat_layout = Payload(
    integer=(1, "the row is to be divided"),
    word=_WORDS,
    s=_S,
    last=(1, "last row of the token"),
    tag=(tag_layout, "what goes with the row"),
)

# An outlier, in flight to its slot; or the end of a token.
outlier_layout = Payload(
    mark=(1, "end of a token, no outlier"),
    slot=_SLOT,
    position=(
        SLOT_LENGTH_BITS,
        "number of the outlier within the token; of a mark their number",
        index_of("outliers"),
    ),
    word=(FP16.bits, "FP16 word; of a mark the status of the token", FP16),
)

# What is known of a token when its second pass begins.
finish_layout = Payload(
    kind=_KIND,
    rows=(1, "it has a second pass"),
    touches=(1, "its slot is written, be it as not valid"),
    status=_STATUS,
    end=(1, "last token of its command"),
    norm=(1, "statistics of the token are wanted"),
    slot=_SLOT,
    length=_LENGTH,
    s=_S,
)


def up_to(element: Value) -> Value:
    """Mask of the elements of a row up to this one."""
    return ((Const(2) << element) - 1)[:ROW_ELEMENTS]


def live_elements(is_last: Value, tail: Value) -> Value:
    """The elements of a row that are within the length; ``tail``: the last one of the last row."""
    return Mux(is_last, up_to(tail), Const(ALL, ROW_ELEMENTS))
