"""A bench whose codebook comes late, inside the simulator."""

import random

from tb.bench import Bench


class Late(random.Random):
    """A source's generator that says idle for the first cycles."""

    def __init__(self, cycles: int):
        super().__init__(cycles)
        self.cycles = cycles

    def random(self) -> float:
        self.cycles -= 1
        return 0.0 if self.cycles >= 0 else 1.0


class LateCodebook(Bench):
    """Offers the codebook from a given cycle on."""

    first = 0

    def rng(self, name: str) -> random.Random:
        return Late(self.first) if name == "codebook" else super().rng(name)
