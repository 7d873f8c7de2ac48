"""Commands of the KLLM accelerator: opcodes, operands with their roles, statuses. Pure Python.

The one place where the command set is written, as a table of golden.isa. The decoder, the
assembler, the golden machine and the tables in docs/kllm-commands.md are made from it.

A command is ``COMMAND_WORDS`` words of 32 bits, lowest bit first:

    word 0        opcode in bits 0..7, zero in bits 8..15, tag in bits 16..31
    words 1..3    for each unit u, 16 bits at 16 * u: the command starts when unit u has completed
                  that many commands since reset, counted modulo 2**16
    words 4..15   one operand each, in the order of the table; unused words are zero

Each command runs on one unit; a unit runs its commands in program order. Commands of different
units overlap unless a wait forbids it. Every command gives one status: its tag, its unit and
``CommandStatus`` bits. A command that fails counts as completed.
"""

import dataclasses
import math
import zlib
from enum import IntEnum, IntFlag
from typing import Any

from golden.isa import Command, CommandSet, Operand, Operands, Size, Touch, Value
from golden.paging.format import Kv, Status

__all__ = [
    "AFTER_BITS",
    "CACHE_STATUS",
    "COMMANDS",
    "COMMAND_ROWS",
    "COMMAND_WORDS",
    "FAILED",
    "FIRST_OPERAND_WORD",
    "GELU_C0",
    "GELU_C1",
    "HEADER_ROWS",
    "NOBODY",
    "OPERANDS_MAX",
    "PROGRAM_MAGIC",
    "PROGRAM_MAX",
    "ROW_BYTES",
    "ROW_ELEMENTS",
    "RUN_CHECKS",
    "RUN_UNIT",
    "SET",
    "Binary",
    "Codebook",
    "Command",
    "CommandStatus",
    "Function",
    "Header",
    "Index",
    "MatmulMode",
    "Norm",
    "Opcode",
    "Operand",
    "OutlierMode",
    "Outliers",
    "RunStatus",
    "Scalar",
    "Statistics",
    "Unit",
    "command_set_word",
    "decode",
    "encode",
    "row_count",
    "slot_word_count",
]

COMMAND_WORDS = 16
FIRST_OPERAND_WORD = 4
OPERANDS_MAX = COMMAND_WORDS - FIRST_OPERAND_WORD
AFTER_BITS = 16
ROW_ELEMENTS = 16  # FP16 words of one row of the vector memory
ROW_BYTES = 2 * ROW_ELEMENTS  # a row of the vector memory and of the data memory
NOBODY = (1 << 32) - 1  # what TOP_K gives of a token without a number


def row_count(length: int) -> int:
    """Rows of the vector memory that ``length`` elements take."""
    return -(-length // ROW_ELEMENTS)


def slot_word_count(length: int, outliers: int) -> int:
    """Words that READ_SLOT gives: a head of 4, 4 of entries and a mask for each row, outliers."""
    return 4 + 5 * row_count(length) + outliers


class Unit(IntEnum):
    """The units that run commands."""

    LOAD = 0  # data memory to vector memory
    QUANTIZE = 1  # vector memory to activation slots
    MATMUL = 2  # lanes: activation slots and weight memory to vector memory
    FUNCTION = 3  # functional unit: vector memory and slots to vector memory
    READ = 4  # vector memory and slots to the host
    CACHE = 5  # vector memory to a paged K/V cache, and attention back to vector memory


class Opcode(IntEnum):
    LOAD = 0x01
    LOAD_AT = 0x02
    ACTIVATION_CODEBOOK = 0x10
    QUANTIZE = 0x11
    QUANTIZE_INTEGER = 0x12
    LANE_CODEBOOK = 0x20
    MATMUL = 0x21
    WEIGHT_BASE = 0x22
    BINARY = 0x30
    AXPY = 0x31
    ROTARY = 0x32
    SOFTMAX = 0x33
    FUNCTION = 0x34
    FUNCTION_CODEBOOK = 0x35
    ACTIVATE = 0x36
    GLU = 0x37
    READ = 0x40
    READ_SLOT = 0x41
    TOP_K = 0x43
    APPEND = 0x50
    ATTEND = 0x51


class CommandStatus(IntFlag):
    """Fault bits of a command; several may be set together, 0 is success."""

    MALFORMED = 1 << 0  # unknown opcode, or an operand wider than its field
    DEPENDENCY = 1 << 1  # waits for more commands than were issued before it
    RANGE = 1 << 2  # a length, count, row, slot or selector outside its range
    CODEBOOK_MISSING = 1 << 3  # before a codebook of the needed kind, or thresholds of the layer
    SLOT_MISMATCH = 1 << 4  # slot or sequence empty, of another length, or of another kind
    NONFINITE = 1 << 5  # NaN, or an infinity where none is allowed, in an activation
    CAPACITY = 1 << 6  # more outliers, or tokens or pages of the cache, than there is room for
    BUS_ERROR = 1 << 7  # SLVERR or DECERR on a read: the destination is filled with NaN
    NEGATIVE = 1 << 8  # a negative element where unsigned integers are made
    ABORTED = 1 << 9  # ended by an abort
    LANE_FAULT = 1 << 10  # a lane reported a fault that no other bit names
    OVERFLOW = 1 << 11  # a finite result beyond FP16 became an infinity; output is written
    SCALE_NONFINITE = 1 << 12  # a weight scale is NaN or infinite; output is written


# Any of these bits: the command's output is not written (but see golden.kllm.machine: some is NaN).
FAILED = (
    CommandStatus.MALFORMED
    | CommandStatus.DEPENDENCY
    | CommandStatus.RANGE
    | CommandStatus.CODEBOOK_MISSING
    | CommandStatus.SLOT_MISMATCH
    | CommandStatus.NONFINITE
    | CommandStatus.CAPACITY
    | CommandStatus.BUS_ERROR
    | CommandStatus.NEGATIVE
    | CommandStatus.ABORTED
    | CommandStatus.LANE_FAULT
)


# A program in the data memory: a header, then the words of its commands, all little-endian. The
# header has COMMAND_WORDS words; those that are not named here are 0.
PROGRAM_MAGIC = 0x52505A53  # "SZPR" in memory
HEADER_ROWS = COMMAND_ROWS = 4 * COMMAND_WORDS // ROW_BYTES
PROGRAM_MAX = (1 << 16) - 1  # commands of a program
RUN_UNIT = 7  # in the answer of a run: no command is to blame
RUN_CHECKS = 1 << 31  # bit of RUN: the check word is compared before the first command


class Header(IntEnum):
    """The words of a program's header."""

    MAGIC = 0
    SET = 1  # ``command_set_word``: the command set
    MACHINE = 2  # golden.kllm.config.MachineConfig.word
    COMMANDS = 3  # 1..PROGRAM_MAX
    CHECK = 4  # CRC-32 of the bytes of the commands
    HEADER_CHECK = 15  # CRC-32 of the bytes of the header before this word


class RunStatus(IntFlag):
    """Why a run has ended, in the answer of RUN_UNIT; 0: every command is done."""

    HEADER = 1 << 0  # no header begins there, or a damaged one; no command began
    FOREIGN = 1 << 1  # of another command set or machine; no command began
    DAMAGED = 1 << 2  # the check word is not that of the commands
    BUS_ERROR = 1 << 7  # SLVERR or DECERR on a read, or beyond the addresses
    ABORTED = 1 << 9  # ended by an abort
    OVERFLOW = 1 << 11  # of some command
    SCALE_NONFINITE = 1 << 12  # of some command


# The bits that a status of the cache means. A command's requests end with no other status.
CACHE_STATUS = {
    Status.OK: CommandStatus(0),
    Status.BAD_REQUEST: CommandStatus.RANGE,
    Status.SEQUENCE_UNKNOWN: CommandStatus.SLOT_MISMATCH,
    Status.THRESHOLDS: CommandStatus.CODEBOOK_MISSING,
    Status.TOKEN_ORDER: CommandStatus.SLOT_MISMATCH,
    Status.LENGTH_LIMIT: CommandStatus.CAPACITY,
    Status.BEYOND_LENGTH: CommandStatus.SLOT_MISMATCH,
    Status.EMPTY: CommandStatus.SLOT_MISMATCH,
    Status.NONFINITE: CommandStatus.NONFINITE,
    Status.OUT_OF_PAGES: CommandStatus.CAPACITY,
    Status.SLAVE_ERROR: CommandStatus.BUS_ERROR,
    Status.DECODE_ERROR: CommandStatus.BUS_ERROR,
    Status.MALFORMED: CommandStatus.BUS_ERROR,
}


class OutlierMode(IntEnum):
    ONLINE = 0  # k_max largest and k_min smallest (Orizuru); scale = largest inlier magnitude
    OFFLINE = 1  # kllm-s: x > upper or x < lower; scale = larger magnitude of the two thresholds


class Norm(IntEnum):
    NONE = 0
    RMS = 1
    LAYER = 2


@dataclasses.dataclass(frozen=True)
class Outliers:
    """The outliers that QUANTIZE keeps, for each token.

    ONLINE: the k_max largest and k_min smallest. OFFLINE: those above ``upper`` or below ``lower``,
    FP16 words.
    """

    k_max: int = 0
    k_min: int = 0
    mode: OutlierMode = OutlierMode.ONLINE
    upper: int = 0
    lower: int = 0

    @property
    def thresholds(self) -> int:
        """The operand of QUANTIZE."""
        return self.upper << 16 | self.lower


@dataclasses.dataclass(frozen=True)
class Statistics:
    """The statistics QUANTIZE keeps with a slot; epsilon: FP32 word added to the mean square."""

    norm: Norm = Norm.NONE
    epsilon: int = 0


class MatmulMode(IntEnum):
    KMEANS = 0  # K-Means x K-Means by counting index pairs
    INTEGER = 1  # unsigned integers x K-Means
    DIRECT = 2  # FP16 x K-Means by the outlier path: every element is an outlier


class Codebook(IntEnum):
    KMEANS = 0  # products and C_B: golden.kllm.format.kmeans_packet_length words
    INTEGER = 1  # C_V: golden.kllm.format.integer_packet_length words


class Binary(IntEnum):
    ADD = 0
    MULTIPLY = 1
    MINIMUM = 2  # of a machine with extra.bounds; a NaN gives NaN, -0 is below +0
    MAXIMUM = 3  # likewise


class Scalar(IntEnum):
    """The source of AXPY's factor."""

    IMMEDIATE = 0  # an FP16 operand
    NEGATED_MEAN = 1  # rne16(-mean * rms_reciprocal) of a slot: LayerNorm's shift


class Index(IntEnum):
    """LOAD_AT takes one of these of a token as the index of an entry.

    A choice is what TOP_K with ``route`` has left of the place, which needs no token. CHOICE_VALUE
    takes no entry of the data memory: all elements of the rows are the word of the choice.
    """

    TOKEN = 0  # its id
    POSITION = 1  # its position in its sequence
    CHOICE = 2  # the id of its choice of a rank
    CHOICE_VALUE = 3  # the same, but the rows are its word


class Function(IntEnum):
    IDENTITY = 0
    RELU = 1
    SILU = 2
    GELU = 3  # tanh form
    EXP = 4
    RECIPROCAL = 5
    SQRT = 6
    RSQRT = 7
    TANH = 8  # of a machine with extra.tanh
    GELU_ERF = 9  # x * Phi(x), exact form; of a machine with extra.gelu_erf
    QUICK_GELU = 10  # x * sigmoid(1.702 x); of a machine with extra.quick_gelu


# GELU = x / (1 + exp(-z)), z = x * (GELU_C0 + GELU_C1 * x**2), FP16 words.
GELU_C0 = 0x3E62  # rne16(2 * sqrt(2 / pi))
GELU_C1 = 0x2C91  # rne16(2 * sqrt(2 / pi) * 0.044715)


def _rows_of(*factors: str, half: bool = False) -> Size:
    """Rows that a product of operands takes, in elements; half: of half as many elements."""

    def size(operands: Operands, _machine: Any) -> int:
        elements = math.prod(operands[name] for name in factors)
        return row_count(elements // 2 if half else elements)

    return size


def _count(name: str) -> Size:
    """Takes as many places as the operand says."""
    return lambda operands, _machine: operands[name]


def _fixed(count: int) -> Size:
    return lambda _operands, _machine: count


def _chosen(operands: Operands, _machine: Any) -> int:
    """Places of the batch whose choices LOAD_AT reads."""
    return operands["tokens"] if operands["index"] >= Index.CHOICE else 0


def _choosing(operands: Operands, _machine: Any) -> int:
    """Places of the batch whose choices TOP_K may write."""
    return operands["tokens"] if operands["route"] else 0


def _cached_rows(operands: Operands, machine: Any) -> int:
    """Rows of K or V of one token."""
    return row_count(machine.cache.kv.elements)


def _attended_rows(operands: Operands, machine: Any) -> int:
    """Rows of all query heads of one token."""
    return row_count(operands["heads"] * machine.cache.kv.head_dim)


def _sink_rows(operands: Operands, machine: Any) -> int:
    """Rows of the sinks of all query heads."""
    return int(machine.sink_rows(operands["heads"]))


def _packet_rows(operands: Operands, machine: Any) -> int:
    """Rows of the packet that LANE_CODEBOOK takes."""
    kmeans = operands["kind"] == Codebook.KMEANS
    return row_count(machine.kmeans_words if kmeans else machine.integer_words)


def _functions(machine: Any) -> tuple[Function, ...]:
    functions: tuple[Function, ...] = machine.extra.functions
    return functions


def _operations(machine: Any) -> tuple[Binary, ...]:
    operations: tuple[Binary, ...] = machine.extra.operations
    return operations


def _row(name: str, meaning: str, role: Touch, default: int | None = None) -> Operand:
    return Operand(name, 16, f"{meaning}, row", role, default)


def _reads(size: Size, stride: str | None = None, **fields: Any) -> Touch:
    """Rows; with a stride, those of all tokens."""
    return Touch("rows", False, size, stride, None if stride is None else "tokens", **fields)


def _writes(size: Size, stride: str | None = None) -> Touch:
    return Touch("rows", True, size, stride, None if stride is None else "tokens")


def _slot(
    meaning: str, name: str = "slot", tokens: bool = False, writes: bool = False, **fields: Any
) -> Operand:
    """A slot, or with ``tokens`` as many."""
    default = fields.pop("default", None)
    size = _count("tokens") if tokens else _fixed(1)
    return Operand(name, 8, meaning, Touch("slots", writes, size, **fields), default)


def _value(name: str, bits: int, meaning: str, default: int | None = None, **role: Any) -> Operand:
    return Operand(name, bits, meaning, Value(**role), default)


def _stride(name: str, meaning: str) -> Operand:
    return _value(name, 16, meaning, 0)


_TOKENS = _value("tokens", 8, "tokens, 1 at least", 1, least=1)
_LENGTH = _value("length", 16, "elements of each token, 1 at least", least=1)
_ELEMENTS = _rows_of("length")
_FUNCTION = _value("function", 4, "Function", selector=Function, served=_functions)
_PLACE_TEXT = "place of the batch of the first token"
_PLACE = _value("place", 8, _PLACE_TEXT, 0)
_LAYER = _value("layer", 8, "layer of the cache")

_TABLE = (
    Command(
        Opcode.LOAD, Unit.LOAD,
        "V[dst + i] = data memory row address + i, i < rows",
        (
            _value("address", 32, "first row of the data memory (32 bytes each)"),
            _value("rows", 16, "rows, 1 at least", least=1),
            _row("dst", "first destination", _writes(_count("rows"))),
        ),
    ),
    Command(
        Opcode.LOAD_AT, Unit.LOAD,
        "V[dst + t * stride] = entry of the index of place + t of the batch, rows each, t < tokens",
        (
            _value("address", 32, "row of the data memory where entry 0 begins"),
            _value("rows", 16, "rows of an entry, 1 at least", least=1),
            _value("index", 2, "Index; 0 or 1 where the machine has no experts", selector=Index),
            _value("limit", 24, "entries; an index of so many or more has none"),
            _row("dst", "first destination", _writes(_count("rows"), "stride")),
            _stride("stride", "rows from token to token"),
            _TOKENS,
            Operand(
                "place", 8, f"{_PLACE_TEXT}; 0 without experts",
                Touch("choices", False, _chosen), 0,
            ),
            _value("rank", 8, "rank of a choice, 0 the best; 0 without experts", 0),
        ),
        needs=Unit.CACHE,
    ),
    Command(
        Opcode.ACTIVATION_CODEBOOK, Unit.QUANTIZE,
        "clustering codebook = centroids in row src (2**bits_a), midpoints in the next row",
        (_row("src", "centroids", _reads(_fixed(2))),),
    ),
    Command(
        Opcode.QUANTIZE, Unit.QUANTIZE,
        "slot[slot + t] = outliers, scale and indices of V[src + t * stride], t < tokens",
        (
            _row("src", "first token", _reads(_ELEMENTS, "stride")),
            _stride("stride", "rows from token to token"),
            _TOKENS,
            _LENGTH,
            _slot("first slot", tokens=True, writes=True),
            _value("k_max", 16, "outliers from the max tree", 0),
            _value("k_min", 16, "outliers from the min tree", 0),
            _value("mode", 1, "OutlierMode", 0, selector=OutlierMode),
            _value(
                "thresholds", 32, "OFFLINE: FP16 upper in bits 16..31, lower in bits 0..15", 0,
                hexadecimal=True,
            ),
            _value("norm", 2, "Norm: statistics kept with the slot", 0, selector=Norm),
            _value("epsilon", 32, "FP32 addend of the norm's mean square", 0, hexadecimal=True),
        ),
    ),
    Command(
        Opcode.QUANTIZE_INTEGER, Unit.QUANTIZE,
        "slot[slot + t] = unsigned integers and scale of V[src + t * stride], t < tokens",
        (
            _row("src", "first token", _reads(_ELEMENTS, "stride")),
            _stride("stride", "rows from token to token"),
            _TOKENS,
            _LENGTH,
            _slot("first slot", tokens=True, writes=True),
        ),
    ),
    Command(
        Opcode.LANE_CODEBOOK, Unit.MATMUL,
        "codebook of all lanes = packet of words from row src on",
        (
            _row("src", "packet", _reads(_packet_rows)),
            _value("kind", 1, "Codebook", selector=Codebook),
        ),
    ),
    Command(
        Opcode.MATMUL, Unit.MATMUL,
        "V[dst + t * stride] = token t times weights, outputs words each, t < tokens",
        (
            _value("mode", 2, "MatmulMode", selector=MatmulMode),
            _slot(
                "slot of the first token; unused by DIRECT", tokens=True, default=0,
                unless=("mode", MatmulMode.DIRECT),
            ),
            _TOKENS,
            _LENGTH,
            _value("outputs", 16, "output channels, 1 at least", least=1),
            _value("weights", 32, "first word of the weights in every weight port's memory"),
            _row("dst", "first destination", _writes(_rows_of("outputs"), "stride")),
            _stride("stride", "rows from token to token of the destination"),
            _value("fold_norm", 1, "weight scales are multiplied by the slot's rms_reciprocal", 0),
            _row(
                "src", "DIRECT: first token",
                _reads(_ELEMENTS, "src_stride", when=("mode", MatmulMode.DIRECT)), 0,
            ),
            _stride("src_stride", "DIRECT: rows from token to token of the source"),
            _value("based", 1, "1: the base is added to ``weights``; 0 without experts", 0),
        ),
    ),
    Command(
        Opcode.WEIGHT_BASE, Unit.MATMUL,
        "base of MATMULs with ``based`` = the first two words of row src, the lower one first",
        (_row("src", "base", _reads(_fixed(1))),),
        needs=Unit.CACHE,
    ),
    Command(
        Opcode.BINARY, Unit.FUNCTION,
        "V[dst + t * dst_stride] = V[a + t * a_stride] op V[b + t * b_stride], element by element",
        (
            _value("op", 2, "Binary", selector=Binary, served=_operations),
            _row("a", "first operand", _reads(_ELEMENTS, "a_stride")),
            _stride("a_stride", "rows from token to token"),
            _row("b", "second operand", _reads(_ELEMENTS, "b_stride")),
            _stride("b_stride", "rows; 0 repeats it"),
            _row("dst", "destination", _writes(_ELEMENTS, "dst_stride")),
            _stride("dst_stride", "rows from token to token"),
            _TOKENS,
            _LENGTH,
        ),
        in_place=True,
    ),
    Command(
        Opcode.AXPY, Unit.FUNCTION,
        "V[dst] = rne16(scalar * V[a] + V[b])",
        (
            _value("scalar", 1, "Scalar", selector=Scalar),
            _value("immediate", 16, "FP16 factor", 0, hexadecimal=True),
            _slot("slot of NEGATED_MEAN", when=("scalar", Scalar.NEGATED_MEAN), default=0),
            _row("a", "multiplicand", _reads(_ELEMENTS)),
            _row("b", "addend", _reads(_ELEMENTS)),
            _row("dst", "destination", _writes(_ELEMENTS)),
            _LENGTH,
        ),
        in_place=True,
    ),
    Command(
        Opcode.ROTARY, Unit.FUNCTION,
        "each head of V[src] rotated by the angles of cos and sin, halves paired",
        (
            _row("src", "first head", _reads(_rows_of("heads", "head_size"))),
            _row("dst", "destination", _writes(_rows_of("heads", "head_size"))),
            _row("cos", "head_size / 2 cosines", _reads(_rows_of("head_size", half=True))),
            _row("sin", "head_size / 2 sines", _reads(_rows_of("head_size", half=True))),
            _value("heads", 8, "heads, 1 at least, one after the other", 1, least=1),
            _value(
                "head_size", 16, "elements of a head, a multiple of 32", least=32, multiple=32
            ),
        ),
    ),
    Command(
        Opcode.SOFTMAX, Unit.FUNCTION,
        "V[dst + t * dst_stride] = softmax(V[src + t * stride]), t < tokens",
        (
            _row("src", "first row vector", _reads(_ELEMENTS, "stride")),
            _stride("stride", "rows from token to token"),
            _row("dst", "destination", _writes(_ELEMENTS, "dst_stride")),
            _stride("dst_stride", "rows from token to token"),
            _TOKENS,
            _LENGTH,
        ),
        in_place=True,
    ),
    Command(
        Opcode.FUNCTION, Unit.FUNCTION,
        "V[dst] = function(V[src]), element by element",
        (
            _FUNCTION,
            _row("src", "operand", _reads(_ELEMENTS)),
            _row("dst", "destination", _writes(_ELEMENTS)),
            _LENGTH,
        ),
        in_place=True,
    ),
    Command(
        Opcode.FUNCTION_CODEBOOK, Unit.FUNCTION,
        "centroids of operand a (table 0) or b (table 1) = 2**bits_a words of row src",
        (
            _value("table", 1, "0: a, 1: b", 0),
            _row("src", "centroids", _reads(_fixed(1))),
        ),
    ),
    Command(
        Opcode.ACTIVATE, Unit.FUNCTION,
        "V[dst] = function of the dequantized slot: once per centroid and per outlier",
        (
            _FUNCTION,
            _slot("activation"),
            _row("dst", "destination", _writes(_ELEMENTS)),
            _LENGTH,
        ),
    ),
    Command(
        Opcode.GLU, Unit.FUNCTION,
        "V[dst] = function(dequantized slot_a) * dequantized slot_b, by their indices",
        (
            _FUNCTION,
            _slot("gate", "slot_a"),
            _slot("factor", "slot_b"),
            _row("dst", "destination", _writes(_ELEMENTS)),
            _LENGTH,
        ),
    ),
    Command(
        Opcode.READ, Unit.READ,
        "rows of V to the host: two elements per word, the lower position in the low half",
        (
            _row("src", "first", _reads(_count("rows"))),
            _value("rows", 16, "rows, 1 at least", least=1),
        ),
    ),
    Command(
        Opcode.READ_SLOT, Unit.READ,
        "a slot to the host: length and outliers, scale, then its entries as bytes, four per word",
        (_slot("activation"),),
    ),
    Command(
        Opcode.TOP_K, Unit.READ,
        "best[place + t] = largest of V[src + t * stride] and of it, t < tokens; an id of each",
        (
            _row("src", "first token", _reads(_ELEMENTS, "stride")),
            _stride("stride", "rows from token to token"),
            _TOKENS,
            _LENGTH,
            _value("first", 24, "id of a token's first element"),
            Operand("place", 8, _PLACE_TEXT, Touch("choices", True, _choosing), 0),
            _value("begin", 1, "1: what was best before does not count", 1),
            _value("end", 1, "1: gives an id of each token to the host, or its choices", 1),
            _value(
                "route", 8, "elements that stay as choices of the place; 0: one goes to the host", 0
            ),
        ),
        needs=Unit.CACHE,
    ),
    Command(
        Opcode.APPEND, Unit.CACHE,
        "V[src + t * stride] = next K or V of the sequence of place + t of the batch, t < tokens",
        (
            _row("src", "first token", _reads(_cached_rows, "stride")),
            _stride("stride", "rows from token to token"),
            _TOKENS,
            _LAYER,
            _value("kv", 1, "Kv", selector=Kv),
            _PLACE,
        ),
    ),
    Command(
        Opcode.ATTEND, Unit.CACHE,
        "V[dst + t * dst_stride] = attention of the queries V[src + t * stride], of place + t of "
        "the batch, on the latest window tokens, with scores capped and sinks, t < tokens",
        (
            _row("src", "first token", _reads(_attended_rows, "stride")),
            _stride("stride", "rows from token to token"),
            _row("dst", "destination", _writes(_attended_rows, "dst_stride")),
            _stride("dst_stride", "rows from token to token"),
            _TOKENS,
            _LAYER,
            _value("heads", 8, "query heads, a multiple of the cache's heads", least=1),
            _PLACE,
            _value("window", 16, "tokens, 0 for all; 0 where the cache has no windows", 0),
            _value(
                "cap", 32, "FP16 c in bits 0..15, rne16(2 / c) in 16..31, 0 for no cap of scores; "
                "0 where the cache has no caps", 0, hexadecimal=True,
            ),
            _row(
                "sinks", "sinks, FP16, those of each group of KV heads from a row on",
                _reads(_sink_rows, when=("has_sinks", 1)), 0,
            ),
            _value("has_sinks", 1, "1: sinks count; 0 where the cache has no sinks", 0),
        ),
    ),
)  # fmt: skip

SET = CommandSet(_TABLE, Unit, COMMAND_WORDS, FIRST_OPERAND_WORD, AFTER_BITS)
COMMANDS: dict[Opcode, Command] = SET.commands
encode, decode = SET.encode, SET.decode


def command_set_word() -> int:
    """CRC-32 of units, opcodes and operands: another one where a program would mean otherwise."""
    lines = [
        f"{int(command.opcode)} {int(command.unit)} "
        + " ".join(f"{operand.name}:{operand.bits}" for operand in command.operands)
        for command in COMMANDS.values()
    ]
    return zlib.crc32("\n".join([f"{COMMAND_WORDS} {AFTER_BITS}", *lines]).encode())
