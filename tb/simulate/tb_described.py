"""Runs inside the simulator, started by test_described.py: a block driven from its NAME.json."""

import cocotb

from tb.bench import params
from tb.simulate.described import Description, Driver, Float

description = Description(params["description"])


def is_same(got, want) -> bool:
    """A float is compared as a word where ``want`` is one, so that each NaN is its own."""
    if isinstance(got, Float):
        return got.word == want if type(want) is int else repr(float(got)) == repr(want)
    if isinstance(got, dict):
        return set(got) == set(want) and all(is_same(got[name], want[name]) for name in got)
    if isinstance(got, list):
        return len(got) == len(want) and all(map(is_same, got, want))
    return type(got) is type(want) and got == want


def check(got, want) -> None:
    for stream, values in want.items():
        for n, (one, other) in enumerate(zip(got[stream], values, strict=True)):
            assert is_same(one, other), f"{stream}: word {n}: got {one}, golden {other}"


async def talk(dut, seed: int, **flow):
    driver = Driver(dut, description, seed)
    await driver.reset()
    counts = {stream: len(values) for stream, values in params["receive"].items()}
    got, cycles = await driver.run(params["send"], counts, **flow)
    check(got, params["receive"])
    return cycles


@cocotb.test()
async def values(dut):
    """The values that come out are golden's by field, with idle and stall cycles."""
    await talk(dut, 1, idle=0.3, stall=0.3)


@cocotb.test()
async def latency_and_rate(dut):
    """Each pair of transfers is, at full rate, as far apart as ``timing`` says.

    No stream is faster than its ``words`` in ``cycles``.
    """
    cycles = await talk(dut, 2)
    least = description.timing["latency"]
    most = description.timing["latency_max"] or least
    for (start, first), (end, second) in params["pairs"]:
        found = cycles[end][second] - cycles[start][first]
        assert least <= found <= most, (
            f"{start} {first} to {end} {second}: {found} cycles, not {least}..{most}"
        )
    for name, taken in cycles.items():
        stream, count = description.streams[name], len(taken) - 1
        if count > 0:
            moved, elapsed = count * stream["cycles"], taken[-1] - taken[0]
            assert moved <= elapsed * stream["words"], f"{name}: {count} words in {elapsed} cycles"
