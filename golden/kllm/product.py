"""A program of products alone: QUANTIZE and MATMUL of some tokens by one matrix. Pure Python.

A bench measures it on the accelerator, and a simulator predicts its cycles from the same words.
"""

import dataclasses
from collections.abc import Sequence

from golden.config import Config, bounded, flag
from golden.kllm.assembler import Assembler, Slots, Vector
from golden.kllm.config import MachineConfig, outlier_count
from golden.kllm.isa import ROW_ELEMENTS, Norm, Opcode, OutlierMode, Outliers, Statistics, row_count

UPPER = 0x4127  # FP16 2.576: 0.5 % of a normal distribution lie above it
_SIGN = 0x8000
_SEEN_ROWS = 2  # rows of each token's output that are read back


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductCase(Config):
    """tokens: of the case; at_a_time: of a QUANTIZE and its MATMUL, a divisor of tokens.

    online: outliers by Orizuru, 0.5 % on each side; else by the thresholds +-2.576
    norm: with the statistic of an RMS norm, folded into the scales
    """

    tokens: int = bounded(1, 1, 1 << 16)
    at_a_time: int = 1
    online: bool = flag(True)
    norm: bool = flag(False)

    def __post_init__(self) -> None:
        self._check_range("at_a_time", 1, self.tokens)
        if self.tokens % self.at_a_time:
            self._refuse("at_a_time", f"a divisor of {self.tokens} tokens")


def product_program(
    machine: MachineConfig, length: int, outputs: int, cases: Sequence[ProductCase]
) -> list[list[int]]:
    """Words of the parts: constants, a command that ends at once, and three parts for each case.

    The data memory has 2 rows of the codebook, the lane's packet, and then the tokens. A case has
    a part that loads, one that quantizes and multiplies, and one that reads the first rows of each
    token's output. AssemblyError: no room.
    """
    asm = Assembler(machine)
    packet_rows = row_count(machine.kmeans_words)
    book = asm.vector(2 * ROW_ELEMENTS)
    asm.load(address=0, dst=book)
    asm.activation_codebook(src=book)
    asm.free(book)
    packet = asm.vector(machine.kmeans_words)
    asm.load(address=2, dst=packet)
    asm.lane_codebook(src=packet)
    asm.free(packet)
    # How long a command takes to come over the register: this one ends at once.
    asm.part()
    asm.emit(Opcode.READ, {"src": 0, "rows": 0}, check=False)
    for case in cases:
        asm.part()
        source = asm.vector(length, case.tokens)
        asm.load(address=2 + packet_rows, dst=source)
        slots = asm.slots(case.tokens)
        asm.part()
        for first in range(0, case.tokens, case.at_a_time):
            row = source.row + first * source.stride
            _product(asm, case, outputs, dataclasses.replace(source, row=row), slots.first + first)
        asm.part()
        for t in range(case.tokens):
            asm.read(src=source.row + t * source.stride, rows=min(_SEEN_ROWS, source.stride))
        asm.free(source, slots)
    return [list(words) for words in asm.parts]


def _product(asm: Assembler, case: ProductCase, outputs: int, source: Vector, slot: int) -> None:
    """Adds the commands of ``at_a_time`` tokens from ``source`` on; the outputs replace them."""
    k = outlier_count(source.length)
    some = dataclasses.replace(source, tokens=case.at_a_time)
    slots = Slots(slot, case.at_a_time)
    outliers = Outliers(k, k)
    if not case.online:
        outliers = Outliers(0, 0, OutlierMode.OFFLINE, UPPER, UPPER | _SIGN)
    norm = Norm.RMS if case.norm else Norm.NONE
    asm.quantize(src=some, slot=slots, outliers=outliers, statistics=Statistics(norm))
    made = dataclasses.replace(some, length=outputs)
    asm.matmul(weights=0, dst=made, length=source.length, slot=slots, fold_norm=case.norm)
