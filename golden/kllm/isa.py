"""Commands of the KLLM accelerator: operands, statuses, words on the wire. Pure Python.

The one place where the command set is written: the decoder, the assembler, the golden machine and
the tables in docs/kllm-commands.md are made from it.

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
from enum import IntEnum, IntFlag

__all__ = [
    "AFTER_BITS",
    "COMMANDS",
    "COMMAND_WORDS",
    "FAILED",
    "FIRST_OPERAND_WORD",
    "GELU_C0",
    "GELU_C1",
    "OPERANDS_MAX",
    "ROW_ELEMENTS",
    "Binary",
    "Codebook",
    "Command",
    "CommandStatus",
    "Function",
    "MatmulMode",
    "Norm",
    "Opcode",
    "Operand",
    "OutlierMode",
    "Outliers",
    "Scalar",
    "Statistics",
    "Unit",
    "decode",
    "encode",
    "row_count",
]

COMMAND_WORDS = 16
FIRST_OPERAND_WORD = 4
OPERANDS_MAX = COMMAND_WORDS - FIRST_OPERAND_WORD
AFTER_BITS = 16
ROW_ELEMENTS = 16  # FP16 words of one row of the vector memory


def row_count(length: int) -> int:
    """Rows of the vector memory that ``length`` elements take."""
    return -(-length // ROW_ELEMENTS)


class Unit(IntEnum):
    """What runs a command."""

    LOAD = 0  # data memory to vector memory
    QUANTIZE = 1  # vector memory to activation slots
    MATMUL = 2  # lanes: activation slots and weight memory to vector memory
    FUNCTION = 3  # functional unit: vector memory and slots to vector memory
    READ = 4  # vector memory and slots to the host


class Opcode(IntEnum):
    LOAD = 0x01
    ACTIVATION_CODEBOOK = 0x10
    QUANTIZE = 0x11
    QUANTIZE_INTEGER = 0x12
    LANE_CODEBOOK = 0x20
    MATMUL = 0x21
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


class CommandStatus(IntFlag):
    """Fault bits of a command; several may be set together, 0 is success."""

    MALFORMED = 1 << 0  # unknown opcode, or an operand wider than its field
    DEPENDENCY = 1 << 1  # waits for more commands than were issued before it
    RANGE = 1 << 2  # a length, count, row, slot or selector outside its range
    CODEBOOK_MISSING = 1 << 3  # before a codebook of the needed kind
    SLOT_MISMATCH = 1 << 4  # slot empty, of another length, or of another kind
    NONFINITE = 1 << 5  # NaN, or an infinity where none is allowed, in an activation
    OUTLIER_COUNT = 1 << 6  # more outliers than a slot holds, or than the token has elements
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
    | CommandStatus.OUTLIER_COUNT
    | CommandStatus.BUS_ERROR
    | CommandStatus.NEGATIVE
    | CommandStatus.ABORTED
    | CommandStatus.LANE_FAULT
)


class OutlierMode(IntEnum):
    ONLINE = 0  # k_max largest and k_min smallest (Orizuru); scale = largest inlier magnitude
    OFFLINE = 1  # kllm-s: x > upper or x < lower; scale = larger magnitude of the two thresholds


class Norm(IntEnum):
    NONE = 0
    RMS = 1
    LAYER = 2


@dataclasses.dataclass(frozen=True)
class Outliers:
    """Which elements QUANTIZE keeps as outliers, for each token.

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
    """Which statistics QUANTIZE keeps with a slot; epsilon: FP32 word added to the mean square."""

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


class Scalar(IntEnum):
    """Where the factor of AXPY comes from."""

    IMMEDIATE = 0  # an FP16 operand
    NEGATED_MEAN = 1  # rne16(-mean * rms_reciprocal) of a slot: LayerNorm's shift


class Function(IntEnum):
    IDENTITY = 0
    RELU = 1
    SILU = 2
    GELU = 3  # tanh form
    EXP = 4
    RECIPROCAL = 5
    SQRT = 6
    RSQRT = 7


# GELU = x / (1 + exp(-z)), z = x * (GELU_C0 + GELU_C1 * x**2), FP16 words.
GELU_C0 = 0x3E62  # rne16(2 * sqrt(2 / pi))
GELU_C1 = 0x2C91  # rne16(2 * sqrt(2 / pi) * 0.044715)


@dataclasses.dataclass(frozen=True)
class Operand:
    """One operand word: ``bits`` low bits, the others must be zero."""

    name: str
    bits: int
    meaning: str


@dataclasses.dataclass(frozen=True)
class Command:
    opcode: Opcode
    unit: Unit
    summary: str
    operands: tuple[Operand, ...]

    def position(self, name: str) -> int:
        """Index of an operand; its word is FIRST_OPERAND_WORD + position."""
        return [operand.name for operand in self.operands].index(name)


def _row(name: str, meaning: str) -> Operand:
    return Operand(name, 16, f"{meaning}, row")


_TOKENS = Operand("tokens", 8, "tokens, 1 at least")
_LENGTH = Operand("length", 16, "elements of each token, 1 at least")

_TABLE = (
    Command(
        Opcode.LOAD, Unit.LOAD,
        "V[dst + i] = data memory row address + i, i < rows",
        (
            Operand("address", 32, "first row of the data memory (32 bytes each)"),
            Operand("rows", 16, "rows, 1 at least"),
            _row("dst", "first destination"),
        ),
    ),
    Command(
        Opcode.ACTIVATION_CODEBOOK, Unit.QUANTIZE,
        "clustering codebook = centroids in row src (2**bits_a), midpoints in the next row",
        (_row("src", "centroids"),),
    ),
    Command(
        Opcode.QUANTIZE, Unit.QUANTIZE,
        "slot[slot + t] = outliers, scale and indices of V[src + t * stride], t < tokens",
        (
            _row("src", "first token"),
            Operand("stride", 16, "rows from token to token"),
            _TOKENS,
            _LENGTH,
            Operand("slot", 8, "first slot"),
            Operand("k_max", 16, "outliers from the max tree"),
            Operand("k_min", 16, "outliers from the min tree"),
            Operand("mode", 1, "OutlierMode"),
            Operand("thresholds", 32, "OFFLINE: FP16 upper in bits 16..31, lower in bits 0..15"),
            Operand("norm", 2, "Norm: statistics kept with the slot"),
            Operand("epsilon", 32, "FP32 addend of the norm's mean square"),
        ),
    ),
    Command(
        Opcode.QUANTIZE_INTEGER, Unit.QUANTIZE,
        "slot[slot + t] = unsigned integers and scale of V[src + t * stride], t < tokens",
        (
            _row("src", "first token"),
            Operand("stride", 16, "rows from token to token"),
            _TOKENS,
            _LENGTH,
            Operand("slot", 8, "first slot"),
        ),
    ),
    Command(
        Opcode.LANE_CODEBOOK, Unit.MATMUL,
        "codebook of all lanes = packet of words from row src on",
        (_row("src", "packet"), Operand("kind", 1, "Codebook")),
    ),
    Command(
        Opcode.MATMUL, Unit.MATMUL,
        "V[dst + t * stride] = token t times weights, outputs words each, t < tokens",
        (
            Operand("mode", 2, "MatmulMode"),
            Operand("slot", 8, "slot of the first token; unused by DIRECT"),
            _TOKENS,
            _LENGTH,
            Operand("outputs", 16, "output channels, 1 at least"),
            Operand("weights", 32, "first word of the weights in every weight port's memory"),
            _row("dst", "first destination"),
            Operand("stride", 16, "rows from token to token of the destination"),
            Operand("fold_norm", 1, "weight scales are multiplied by the slot's rms_reciprocal"),
            _row("src", "DIRECT: first token"),
            Operand("src_stride", 16, "DIRECT: rows from token to token of the source"),
        ),
    ),
    Command(
        Opcode.BINARY, Unit.FUNCTION,
        "V[dst + t * dst_stride] = V[a + t * a_stride] op V[b + t * b_stride], element by element",
        (
            Operand("op", 1, "Binary"),
            _row("a", "first operand"), Operand("a_stride", 16, "rows from token to token"),
            _row("b", "second operand"), Operand("b_stride", 16, "rows; 0 repeats it"),
            _row("dst", "destination"), Operand("dst_stride", 16, "rows from token to token"),
            _TOKENS,
            _LENGTH,
        ),
    ),
    Command(
        Opcode.AXPY, Unit.FUNCTION,
        "V[dst] = rne16(scalar * V[a] + V[b])",
        (
            Operand("scalar", 1, "Scalar"),
            Operand("immediate", 16, "FP16 factor"),
            Operand("slot", 8, "slot of NEGATED_MEAN"),
            _row("a", "multiplicand"), _row("b", "addend"), _row("dst", "destination"),
            _LENGTH,
        ),
    ),
    Command(
        Opcode.ROTARY, Unit.FUNCTION,
        "each head of V[src] rotated by the angles of cos and sin, halves paired",
        (
            _row("src", "first head"), _row("dst", "destination"),
            _row("cos", "head_size / 2 cosines"), _row("sin", "head_size / 2 sines"),
            Operand("heads", 8, "heads, 1 at least, one behind the other"),
            Operand("head_size", 16, "elements of a head, a multiple of 32"),
        ),
    ),
    Command(
        Opcode.SOFTMAX, Unit.FUNCTION,
        "V[dst + t * dst_stride] = softmax(V[src + t * stride]), t < tokens",
        (
            _row("src", "first row vector"), Operand("stride", 16, "rows from token to token"),
            _row("dst", "destination"), Operand("dst_stride", 16, "rows from token to token"),
            _TOKENS,
            _LENGTH,
        ),
    ),
    Command(
        Opcode.FUNCTION, Unit.FUNCTION,
        "V[dst] = function(V[src]), element by element",
        (
            Operand("function", 3, "Function"),
            _row("src", "operand"), _row("dst", "destination"), _LENGTH,
        ),
    ),
    Command(
        Opcode.FUNCTION_CODEBOOK, Unit.FUNCTION,
        "centroids of operand a (table 0) or b (table 1) = 2**bits_a words of row src",
        (Operand("table", 1, "0: a, 1: b"), _row("src", "centroids")),
    ),
    Command(
        Opcode.ACTIVATE, Unit.FUNCTION,
        "V[dst] = function of the dequantized slot: once per centroid and per outlier",
        (
            Operand("function", 3, "Function"),
            Operand("slot", 8, "activation"), _row("dst", "destination"), _LENGTH,
        ),
    ),
    Command(
        Opcode.GLU, Unit.FUNCTION,
        "V[dst] = function(dequantized slot_a) * dequantized slot_b, by their indices",
        (
            Operand("function", 3, "Function"),
            Operand("slot_a", 8, "gate"), Operand("slot_b", 8, "factor"),
            _row("dst", "destination"), _LENGTH,
        ),
    ),
    Command(
        Opcode.READ, Unit.READ,
        "rows of V to the host: two elements per word, the lower position in the low half",
        (_row("src", "first"), Operand("rows", 16, "rows, 1 at least")),
    ),
    Command(
        Opcode.READ_SLOT, Unit.READ,
        "a slot to the host: length and outliers, scale, then its entries as bytes, four per word",
        (Operand("slot", 8, "activation"),),
    ),
)  # fmt: skip

COMMANDS = {command.opcode: command for command in _TABLE}


def encode(opcode: Opcode, tag: int, after: dict[Unit, int], operands: dict[str, int]) -> list[int]:
    """The COMMAND_WORDS words of a command.

    ValueError: a tag, wait or operand out of range, an operand that the command does not have or
    that is missing.
    """
    command = COMMANDS[opcode]
    names = [operand.name for operand in command.operands]
    odd = sorted(set(operands) ^ set(names))
    if odd:
        raise ValueError(f"{opcode.name} takes {', '.join(names)}; wrong or missing: {odd}")
    words = [0] * COMMAND_WORDS
    if not 0 <= tag < 1 << 16:
        raise ValueError(f"tag must be 0..65535, not {tag}")
    words[0] = int(opcode) | tag << 16
    for unit, count in after.items():
        field = count % (1 << AFTER_BITS)
        words[1 + unit // 2] |= field << AFTER_BITS * (unit % 2)
    for position, operand in enumerate(command.operands):
        value = int(operands[operand.name])
        if not 0 <= value < 1 << operand.bits:
            raise ValueError(
                f"{opcode.name}.{operand.name} must be 0..{(1 << operand.bits) - 1}, not {value}"
            )
        words[FIRST_OPERAND_WORD + position] = value
    return words


def decode(words: list[int]) -> tuple[Opcode, int, dict[Unit, int], dict[str, int]]:
    """Inverse of ``encode``. ValueError: not a command."""
    if len(words) != COMMAND_WORDS:
        raise ValueError(f"a command has {COMMAND_WORDS} words, not {len(words)}")
    if words[0] & 0xFF not in COMMANDS or words[0] >> 8 & 0xFF:
        raise ValueError(f"no command begins with {words[0]:#010x}")
    opcode = Opcode(words[0] & 0xFF)
    after = {
        unit: words[1 + unit // 2] >> AFTER_BITS * (unit % 2) & ((1 << AFTER_BITS) - 1)
        for unit in Unit
    }
    operands = {}
    for position in range(OPERANDS_MAX):
        value = words[FIRST_OPERAND_WORD + position]
        if position < len(COMMANDS[opcode].operands):
            operand = COMMANDS[opcode].operands[position]
            if value >> operand.bits:
                raise ValueError(f"{opcode.name}.{operand.name} is {value:#x}: too wide")
            operands[operand.name] = value
        elif value:
            raise ValueError(f"{opcode.name}: operand word {position} must be zero")
    return opcode, words[0] >> 16, after, operands
