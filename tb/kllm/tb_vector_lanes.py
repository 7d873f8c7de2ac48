"""Runs inside the simulator, started by test_vector_lanes.py: one operation after another."""

from math import gcd

from golden.kllm.format import Operation
from tb.bench import config, interface, params
from tb.contract import Contract, block_timing

CASES = params["cases"]
PORTS = ("operation", "scalar", "scale")


class Case(Contract):
    """The rows of one operation."""

    def __init__(self, number: int) -> None:
        case = CASES[number]
        self.ports, self.sink = {name: case[name] for name in PORTS}, case["sink"]
        words = {name: [] for name in (*interface["sources"], *interface["sinks"])}
        words |= case["offers"] | {case["sink"]: case["words"]}
        pairs = gcd(*map(len, words.values())) // 2  # of rows: ROTATE needs both
        packets = {
            name: [len(each) * n // pairs for n in range(1, pairs + 1)]
            for name, each in words.items()
        }  # fmt: skip
        cuts = range(1 + 2 * number, 40, 2 * len(CASES))
        super().__init__(words, packets=packets, idles=(0.0, 0.5, 0.9), cuts=cuts)

    async def enter(self, bench, p_idle=0.0) -> None:
        for name, value in self.ports.items():
            bench.dut[name].value = value

    def check_timing(self, flow, packets=None) -> None:
        timing, operation = block_timing(), Operation(self.ports["operation"])
        first, row, cycles = timing.latency, 16 // config.width, flow.cycles[self.sink]
        if operation == Operation.SCALE:
            first = timing.delay("from weight to o")
        elif operation == Operation.SCORE:
            first = timing.delay("from a to score")
        elif operation == Operation.ELEMENT:
            first, row = timing.delay("from a to element"), timing.delay("per row of elements")
        elif operation == Operation.ROTATE:
            first += 1  # the second row
        assert cycles == list(range(first, first + len(cycles))), operation.name
        if operation not in (Operation.SCALE, Operation.ROTATE):
            assert flow.cycles["a"] == [row * n for n in range(len(flow.cycles["a"]))]


first, *others = map(Case, range(len(CASES)))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests(*others)
