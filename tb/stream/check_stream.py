"""Runs inside the simulator: tests that every stream block must pass, whatever its function."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.stream.reference import arbitrate, check_arbitration
from golden.words import layout_fields
from tb.bench import Bench, config, params

_CASES = params["cases"]


def _streams(kind):
    return {
        f"u{k}_{name}": words for k, case in enumerate(_CASES) for name, words in case[kind].items()
    }


_SOURCES, _SINKS = _streams("sources"), _streams("sinks")
assert _SOURCES
assert all(len(words) >= 20 for words in (*_SOURCES.values(), *_SINKS.values()))


def _bench(dut) -> Bench:
    return Bench(dut, sources=list(_SOURCES), sinks=list(_SINKS))


async def _watch(dut, k, case):
    """Flags of block k in every cycle, from its first word on."""
    position = dict.fromkeys(case["flags"], 0)
    while True:
        await ReadOnly()
        for flag, (name, golden) in case["flags"].items():
            valid, ready = (int(dut[f"u{k}_{name}__{pin}"].value) for pin in ("valid", "ready"))
            expected = golden[position[flag]] if valid else 0
            assert int(dut[f"u{k}_{flag}"].value) == expected, (
                f"{config.members[k]}: {flag} is not {expected} at word {position[flag]}"
            )
            position[flag] += valid & ready
        await FallingEdge(dut.clk)


async def _run_all(bench, **options):
    """Every word through every block, compared with the golden ones."""
    watches = [
        cocotb.start_soon(_watch(bench.dut, k, case))
        for k, case in enumerate(_CASES)
        if case["flags"]
    ]
    flow = await bench.run(
        _SOURCES, {name: len(words) for name, words in _SINKS.items()}, **options
    )
    for watch in watches:
        watch.cancel()
    for k, case in enumerate(_CASES):
        if case["merge"]:
            _check_merge(k, case, flow.words[f"u{k}_o"], not options.get("p_idle"))
        else:
            for name, golden in case["sinks"].items():
                assert flow.words[f"u{k}_{name}"] == golden, f"{config.members[k]}: {name}"
    return flow


def _check_merge(k, case, output, is_busy):
    """A legal merge; where no input ever pauses (``is_busy``), the one of the policy.

    A word without ``last`` is a packet.
    """
    layout = config.members[k][1]

    def fields(layout, words, *names):
        known = layout.members
        columns = [
            layout_fields(layout, words, name) if name in known else [1] * len(words)
            for name in names
        ]
        return list(zip(*columns, strict=True))

    inputs = [
        fields(layout.i_layout, case["sources"][f"i_{n}"], "data", "last")
        for n in range(len(case["sources"]))
    ]
    found = fields(layout.o_layout, output, "data", "source", "last")
    check_arbitration(inputs, found)
    if is_busy:
        expected = arbitrate(inputs, layout.policy)
        assert found == expected, f"{config.members[k]}: another order than {layout.policy}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.3, 0.9])
async def random_flow(dut, p_idle, p_stall):
    bench = _bench(dut)
    await bench.reset()
    await _run_all(bench, p_idle=p_idle, p_stall=p_stall)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def uneven_streams(dut):
    """One stream of a block slow and its others fast: none is to depend on another's pace."""
    bench = _bench(dut)
    for parity in (0, 1):
        await bench.reset()
        await _run_all(
            bench,
            p_idle={name: 0.8 * (n % 2 == parity) for n, name in enumerate(_SOURCES)},
            p_stall={name: 0.8 * (n % 2 == parity) for n, name in enumerate(_SINKS)},
        )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def exact_cycles(dut):
    """Latency and throughput that the docstrings promise."""
    bench = _bench(dut)
    await bench.reset()
    flow = await _run_all(bench)
    for k, case in enumerate(_CASES):
        for name, cycles in case["cycles"].items():
            assert flow.cycles[f"u{k}_{name}"] == cycles, f"{config.members[k]}: {name}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def timing(dut):
    """The latency and the interval of each block's Timing, from the first word to the last."""
    bench = _bench(dut)
    await bench.reset()
    flow = await _run_all(bench)
    for k, case in enumerate(_CASES):
        promised = case["timing"]
        given = flow.cycles[f"u{k}_{next(iter(case['sinks']))}"]
        taken = flow.cycles[f"u{k}_{next(iter(case['sources']))}"]
        start = 0 if case["cause"] is None else taken[case["cause"]]
        latency = given[0] - start
        assert latency == promised.latency, f"{config.members[k]}: latency {latency}"
        if case["paced"]:
            spent, longest = given[-1] - given[0], (len(given) - 1) * promised.interval
            assert longest - 1 < spent <= longest + promised.interval, (
                f"{config.members[k]}: {spent} cycles for {len(given)} words, not {longest}"
            )


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def capacity(dut):
    bench = _bench(dut)
    await bench.reset()
    takes = {name: len(words) for name, words in _SINKS.items()}
    flow = await bench.run(_SOURCES, takes, p_stall=1.0, stop_at=40)
    for k, case in enumerate(_CASES):
        for name in case["sources"]:
            assert flow.sent[f"u{k}_{name}"] == case["capacity"], f"{config.members[k]}: {name}"


@cocotb.test(timeout_time=20, timeout_unit="ms")
@cocotb.parametrize(stop_at=[1, 2, 3, 5, 8, 13, 40])
async def reset_mid_packet(dut, stop_at):
    """Whatever a block held at reset, it then behaves as new, cycle by cycle."""
    bench = _bench(dut)
    await bench.reset()
    takes = {name: len(words) for name, words in _SINKS.items()}
    await bench.run(_SOURCES, takes, p_stall=0.4, stop_at=stop_at)
    await bench.reset(cycles=1)
    flow = await _run_all(bench)
    for k, case in enumerate(_CASES):
        for name, cycles in case["cycles"].items():
            assert flow.cycles[f"u{k}_{name}"] == cycles, f"{config.members[k]}: {name}"
