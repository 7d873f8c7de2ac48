"""Runs inside the simulator, started by test_cap.py: scores through one cap after another."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Contract


class Capped(Contract):
    """The scores of a cap, which is there before them and stays."""

    def __init__(self, number: int, cap: int, **fields) -> None:
        words = {each: unpack_ints(vectors[f"{number}.{each}"]) for each in "io"}
        super().__init__(words, **fields)
        self.cap = cap

    async def enter(self, bench, p_idle=0.0) -> None:
        bench.dut.cap.value = self.cap


first, *others = (
    Capped(number, cap, some=200, cuts=range(1, 40, 6)) for number, cap in enumerate(params["caps"])
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
