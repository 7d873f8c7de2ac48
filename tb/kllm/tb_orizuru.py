"""Runs inside the simulator, started by test_orizuru.py: tokens through KllmOrizuru."""

from itertools import accumulate

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.contract import Contract, block_timing

TOKENS = params["tokens"]  # (beats, k_max, k_min, is sound) of each; counts are of its pops
COUNTS = dict(zip(("x", "pop_max", "pop_min"), zip(*TOKENS, strict=True), strict=False))
COUNTS |= dict.fromkeys(("job", "done"), (1,) * len(TOKENS))


def done_after_pops(flow, counts) -> None:
    for name in ("pop_max", "pop_min"):
        for token, popped in enumerate(contract.packets[name][: counts["done"]]):
            if popped:
                assert flow.cycles[name][popped - 1] < flow.cycles["done"][token]


class Tokens(Contract):
    """Every transfer in the cycle that the timing gives."""

    def check_timing(self, flow, packets=None) -> None:
        expected = {name: [] for name in self.words}
        timing = block_timing()
        period = int(timing.interval)
        is_shared = config.architecture == "shared"
        first_shown = 1 if is_shared else 1 + config.trees_config.levels  # after the start
        loading = timing.latency - first_shown  # last beat to start
        job, free = 0, 0
        for beats, k_max, k_min, is_sound in TOKENS[:packets]:
            expected["job"].append(job)
            expected["x"] += range(job + 1, job + 1 + beats)
            loaded = job + beats + loading if beats else job + 1
            start = max(loaded, free)
            shown = start + first_shown
            late = int(is_shared and k_max > 0)  # one port for the leaves of both trees
            largest = [shown + period * n for n in range(k_max + 1)]
            smallest = [shown + period * n + late * (n > 0) for n in range(k_min + 1)]
            expected["pop_max"] += largest[:-1]
            expected["pop_min"] += smallest[:-1]
            free = max(largest[-1], smallest[-1]) if is_sound else start + 1
            expected["done"].append(free)
            job = start + 1
        for name, cycles in expected.items():
            for n, (got, cycle) in enumerate(zip(flow.cycles[name], cycles, strict=True)):
                assert got == cycle, f"{name} {n}: in cycle {got}, expected {cycle}"


contract = Tokens(
    {name: unpack_ints(vectors[name]) for name in COUNTS},
    packets={name: list(accumulate(counts)) for name, counts in COUNTS.items()},
    some=params["flow"], idles=(0.0, 0.6), slow=0.95, cuts=params["cuts"], check=done_after_pops,
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
