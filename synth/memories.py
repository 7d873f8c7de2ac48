"""Published macros of RAMs, to compare with those of ``golden.sram``."""

import dataclasses

from synth.area import DFF_28NM


@dataclasses.dataclass(frozen=True)
class Macro:
    """A published macro. ``flip_flop`` is the area of a plain flip-flop of the same process."""

    name: str
    process: str
    ports: str
    words: int
    bits: int
    um2: float
    flip_flop: float
    source: str

    @property
    def per_bit(self) -> float:
        return self.um2 / (self.words * self.bits)

    @property
    def per_bit_28nm(self) -> float:
        """Scaled as logic is: a plain flip-flop is DFF_28NM um2."""
        return self.per_bit * DFF_28NM / self.flip_flop


_OPENRAM = "github.com/VLSIDA/sky130_sram_macros, SIZE of the LEF"
MACROS = (
    Macro("sky130_sram_1kbyte_1rw1r_32x256_8", "Sky130", "1rw1r", 256, 32, 493.38 * 400.22,
          20.0192, _OPENRAM),
    Macro("sky130_sram_2kbyte_1rw_32x512_8", "Sky130", "1rw", 512, 32, 483.86 * 326.1,
          20.0192, _OPENRAM),
)  # fmt: skip
