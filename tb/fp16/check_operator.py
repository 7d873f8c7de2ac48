"""Runs inside the simulator: tests that every floating-point operator passes, whatever it does.

``vectors``: per member k of the bank the payloads ``i{k}`` and the expected ones ``o{k}``, rows
of bytes. ``flow{k}`` are the numbers of the rows for runs with idle and stall cycles.
"""

import cocotb

from tb.bench import Bench, config, params, vectors

_MEMBERS = range(len(config.members))
_SOURCES = [f"i{k}" for k in _MEMBERS]
_SINKS = [f"o{k}" for k in _MEMBERS]
_WORDS = {
    name: [int.from_bytes(row, "little") for row in vectors[name].tolist()]
    for name in (*_SOURCES, *_SINKS)
}
assert all(len(words) >= 16 for words in _WORDS.values())


def _bench(dut) -> Bench:
    return Bench(dut, sources=_SOURCES, sinks=_SINKS)


async def _run(bench, rows=None, **options):
    """Send these rows of each member, or all, and compare what comes out."""
    if rows is None:
        rows = [range(len(_WORDS[name])) for name in _SOURCES]
    offers = {f"i{k}": [_WORDS[f"i{k}"][row] for row in rows[k]] for k in _MEMBERS}
    flow = await bench.run(offers, {f"o{k}": len(rows[k]) for k in _MEMBERS}, **options)
    for k in _MEMBERS:
        for row, word in zip(rows[k], flow.words[f"o{k}"], strict=True):
            expected = _WORDS[f"o{k}"][row]
            assert word == expected, (
                f"{config.members[k]}: row {row}, i {_WORDS[f'i{k}'][row]:#x}: "
                f"o {word:#x}, not {expected:#x}"
            )
    return flow


@cocotb.test()
async def all_vectors_at_full_rate(dut):
    """Every vector; one word per cycle, or one at a time; the latency is the number of stages."""
    bench = _bench(dut)
    await bench.reset()
    flow = await _run(bench)
    for k, member in enumerate(config.members):
        taken, given = flow.cycles[f"i{k}"], flow.cycles[f"o{k}"]
        step = member.stages + 1 if params["in_turn"] else 1
        expected = range(taken[0], taken[0] + step * len(taken), step)
        assert taken == list(expected), f"{member}: not full rate"
        assert given == [cycle + member.stages for cycle in taken], f"{member}: latency"


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5, 0.9])
async def idle_by_stall(dut, p_idle, p_stall):
    """Junk while not valid, words held while stalled, none lost or repeated."""
    bench = _bench(dut)
    await bench.reset()
    rng, count = bench.rng(f"{p_idle} {p_stall}"), params["flow_rows"]
    rows = [rng.sample(vectors[f"flow{k}"].tolist(), count) for k in _MEMBERS]
    await _run(bench, rows, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def reset_in_mid_stream(dut):
    """Reset forgets words in flight; the next ones are right."""
    bench = _bench(dut)
    await bench.reset()
    for stop_at in (3, 5, 9, 14):
        offers = {name: _WORDS[name][:16] for name in _SOURCES}
        await bench.run(offers, dict.fromkeys(_SINKS, 16), p_stall=0.6, stop_at=stop_at)
        await bench.reset(cycles=1)
        await _run(bench, [range(16)] * len(_MEMBERS))


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.7])
async def stalled_operator_fills_and_drains(dut, p_idle):
    """Each stage holds one word, bubbles close up, and i waits when all are full.

    An operator that takes one word at a time holds one.
    """
    bench = _bench(dut)
    await bench.reset()
    rows = max(member.stages for member in config.members) + 4
    offers = {name: _WORDS[name][:rows] for name in _SOURCES}
    stop_at = rows + 8 if not p_idle else 16 * rows
    flow = await bench.run(
        offers, dict.fromkeys(_SINKS, rows), p_idle=p_idle, p_stall=1.0, stop_at=stop_at
    )
    for k, member in enumerate(config.members):
        assert flow.sent[f"i{k}"] == _held(member), f"{member}: words taken while stalled"
    drained = await bench.run({}, {f"o{k}": _held(config.members[k]) for k in _MEMBERS})
    for k, member in enumerate(config.members):
        assert drained.words[f"o{k}"] == _WORDS[f"o{k}"][: _held(member)], f"{member}: drained"


def _held(member) -> int:
    """The words that it holds."""
    return 1 if params["in_turn"] else member.stages
