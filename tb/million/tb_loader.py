"""Runs inside the simulator, started by test_loader.py: codebooks to the stores of K and V."""

from golden.index.format import CodebookFault
from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Followed

STREAMS = ("load", "codebook", "info_0", "info_1", "word_0", "word_1", "status")
WORDS = {name: unpack_ints(vectors[name]) for name in STREAMS}


class Stores(Followed):
    """The stores' faults are junk but from the last word of V to ``status``."""

    def begin(self, bench) -> None:
        self.begun = self.ended = self.loaded = 0
        self.rng = bench.rng("faults")

    def sample(self, bench) -> None:
        is_idle = bool(bench.dut.idle.value)
        assert is_idle == (self.begun == self.ended), f"idle is {is_idle} in LOAD {self.begun}"
        for name, _ in bench.transfers(("load", "word_1", "status")):
            self.begun += name == "load"
            self.loaded += name == "word_1"
            self.ended += name == "status"

    def drive(self, bench) -> None:
        faults = [self.rng.getrandbits(len(CodebookFault)) for _ in range(2)]
        ends = self.packets["word_1"]
        if self.begun > self.ended and self.loaded == ends[self.ended]:
            faults = params["faults"][self.ended]
        bench.dut.faults_k.value, bench.dut.faults_v.value = faults


contract = Stores(
    WORDS, packets=params["packets"], some=params["some"], cuts=[*range(1, 12), 19, 37, 54]
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
