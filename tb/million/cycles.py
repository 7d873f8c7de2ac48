"""A contract that knows every cycle, and what moves plain ports, inside the simulator."""

from tb import contract
from tb.bench import params


class Scheduled(contract.Contract):
    """Each word of the streams in ``params["cycles"]`` moves in the cycle that they state.

    The test file computes the cycles from the block's timing.
    """

    def check_timing(self, flow, packets=None) -> None:
        for name, cycles in params["cycles"].items():
            got = flow.cycles[name]
            assert got, f"{name}: no word"
            for n, (cycle, due) in enumerate(zip(got, cycles, strict=False)):
                assert cycle == due, f"{name}: word {n} moved in cycle {cycle}, not {due}"
            assert packets is not None or len(got) == len(cycles)


class Followed(contract.Followed, Scheduled):
    """Both: each word in its cycle, and plain ports that move."""
