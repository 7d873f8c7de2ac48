"""Runs inside the simulator, started by test_orizuru.py: tokens through KllmOrizuru."""

import cocotb

from golden.words import unpack_ints
from hdl.kllm.outliers.orizuru import KllmOrizuru
from tb.bench import Bench, config, params, vectors

WORDS = {name: unpack_ints(vectors[name]) for name in vectors}
TOKENS = params["tokens"]  # (beats, k_max, k_min, is sound) of each; counts are of its pops
SOURCES, SINKS = ("job", "x"), ("pop_max", "pop_min", "done")


def parts(first, count):
    """Words of tokens first .. first + count - 1 on every stream."""
    sizes = {"job": (1,) * len(TOKENS), "done": (1,) * len(TOKENS)}
    sizes |= {name: [t[k] for t in TOKENS] for k, name in enumerate(("x", "pop_max", "pop_min"))}
    chosen = {}
    for name, size in sizes.items():
        begin = sum(size[:first])
        chosen[name] = WORDS[name][begin : begin + sum(size[first : first + count])]
    return chosen


async def replay(bench, first=0, count=None, **flow):
    """Send tokens; every pop and done word equals golden's, and done comes after the pops."""
    count = len(TOKENS) - first if count is None else count
    golden = parts(first, count)
    offers = {name: golden[name] for name in SOURCES}
    takes = {name: len(golden[name]) for name in SINKS}
    result = await bench.run(offers, takes, **flow)
    for name in SINKS:
        for n, (got, word) in enumerate(zip(result.words[name], golden[name], strict=True)):
            assert got == word, f"{name} {n}: got {got:#x}, golden {word:#x}"
    for name, k in (("pop_max", 1), ("pop_min", 2)):
        popped = 0
        for token in range(count):
            popped += TOKENS[first + token][k]
            if popped:
                assert result.cycles[name][popped - 1] < result.cycles["done"][token]
    return result


def bench_of(dut):
    return Bench(dut, sources=SOURCES, sinks=SINKS)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.6], p_stall=[0.0, 0.5, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = bench_of(dut)
    await bench.reset()
    await replay(bench, 0, params["flow"], p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
@cocotb.parametrize(slow=["job", "x", "pop_max", "pop_min", "done"])
async def one_slow_stream(dut, slow):
    bench = bench_of(dut)
    await bench.reset()
    idle = {name: 0.95 * (name == slow) for name in SOURCES}
    stall = {name: 0.95 * (name == slow) for name in SINKS}
    await replay(bench, 0, params["slow"], p_idle=idle, p_stall=stall)


@cocotb.test()
async def ready_after_valid(dut):
    bench = bench_of(dut)
    await bench.reset()
    await replay(bench, 0, params["flow"], late_ready=True)


@cocotb.test()
async def full_rate(dut):
    """Every token, every transfer in the cycle that the contract gives."""
    bench = bench_of(dut)
    await bench.reset()
    flow = await replay(bench)
    expected = {name: [] for name in (*SOURCES, *SINKS)}
    block = KllmOrizuru(config)
    period = int(block.timing.interval)
    is_shared = config.architecture == "shared"
    first_shown = 1 if is_shared else 1 + config.trees_config.levels  # after the start
    loading = block.timing.latency - first_shown  # last beat to start
    job, free = 0, 0
    for beats, k_max, k_min, is_sound in TOKENS:
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


@cocotb.test()
async def reset_in_mid_packet(dut):
    bench = bench_of(dut)
    await bench.reset()
    chosen = parts(0, params["flow"])
    offers = {name: chosen[name] for name in SOURCES}
    takes = {name: len(chosen[name]) for name in SINKS}
    for cut in params["cuts"]:
        await bench.run(offers, takes, p_stall=0.5, stop_at=cut)
        await bench.reset(1)
        if cut % 2:
            await bench.run({}, {})  # nothing of it comes out
        await replay(bench, cut % 5, 3)
