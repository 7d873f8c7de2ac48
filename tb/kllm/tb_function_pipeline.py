"""Runs inside the simulator, started by test_function_pipeline.py: words through every function."""

import cocotb

from golden.kllm.isa import Function
from golden.kllm.timing import function_cycles
from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing

CYCLES = function_cycles(config.stages)


class Words(Contract):
    """A word per cycle of one function; those of another one enter the empty pipeline."""

    def __init__(self, name: str, **fields) -> None:
        super().__init__({each: unpack_ints(vectors[f"{name}.{each}"]) for each in "io"}, **fields)

    def check_timing(self, flow, packets=None) -> None:
        timing = block_timing()
        assert (timing.latency, timing.latency_max) == (min(CYCLES.values()), max(CYCLES.values()))
        taken, given, before = [], [], None
        for word in self.words["i"][: len(flow.cycles["i"])]:
            function = Function(word & 15)
            taken.append(taken[-1] + 1 if function == before else [-1, *given][-1] + 1)
            given.append(taken[-1] + CYCLES[function.name])
            before = function
        assert flow.cycles["i"] == taken
        assert flow.cycles["o"] == given


@cocotb.test()
@cocotb.parametrize(name=params["functions"])
async def every_word_at_full_rate(dut, name):
    words = Words(name)
    words.check_timing(await words.replay(await words.started(dut)))


contract = Words("mixed", idles=(0.0, 0.5, 0.95), cuts=range(1, 60, 3))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
