"""Runs inside the simulator: clients of one MemoryShared, each answer dated by the transfers."""

import cocotb

from golden.memory.reference import UNKNOWN, memory_shared
from tb.bench import Bench, config, params
from tb.contract import block_timing

READS = [f"request_{k}" for k in range(config.readers)]
ANSWERS = [f"answer_{k}" for k in range(config.readers)]
WRITES = [f"write_{k}" for k in range(config.writers)]
ADDRESS_BITS = config.memory.address_bits


def write_words(rng, count):
    return [rng.randrange(config.depth) | rng.getrandbits(config.width) << ADDRESS_BITS
            for _ in range(count)]  # fmt: skip


async def fill(bench, rng):
    """Every address written once, so that all words are known."""
    words = [a | rng.getrandbits(config.width) << ADDRESS_BITS for a in range(config.depth)]
    flow = await bench.run({WRITES[0]: words}, {})
    return [(-1, word) for word in flow.words.get(WRITES[0], words)]


def check(before, offers, flow):
    mask = (1 << ADDRESS_BITS) - 1
    writes = [(when, word & mask, word >> ADDRESS_BITS) for when, word in before]
    for name in WRITES:
        for cycle, word in zip(flow.cycles[name], offers.get(name, []), strict=True):
            writes.append((cycle, word & mask, word >> ADDRESS_BITS))
    written = {(cycle, address) for cycle, address, _ in writes}
    for request, answer in zip(READS, ANSWERS, strict=True):
        wanted = offers.get(request, [])
        # A vendor's RAM promises nothing for a word that is read while it is written.
        assert not written & set(zip(flow.cycles[request], wanted, strict=True))
        expected = memory_shared(writes, list(zip(flow.cycles[request], wanted, strict=True)))
        assert UNKNOWN not in expected
        assert flow.words[answer] == expected, answer


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5, 0.9], p_stall=[0.0, 0.5])
async def random_clients(dut, p_idle, p_stall):
    """All clients at once, few addresses: reads see the writes of earlier cycles and no others."""
    bench = Bench(dut, sources=[*READS, *WRITES], sinks=ANSWERS)
    rng = bench.rng("words")
    await bench.reset()
    before = await fill(bench, rng)
    count = params["words"]
    offers = {name: [rng.randrange(config.depth) for _ in range(count)] for name in READS}
    offers |= {name: write_words(rng, count) for name in WRITES}
    stall = dict.fromkeys(ANSWERS, p_stall)
    takes = dict.fromkeys(ANSWERS, count)
    flow = await bench.run(offers, takes, p_idle=p_idle, p_stall=stall)
    check(before, offers, flow)


@cocotb.test()
async def stalled_reader_does_not_stop_the_others(dut):
    """A reader that takes nothing holds its own answers and no one else's."""
    if config.readers < 2:
        return
    bench = Bench(dut, sources=[*READS, *WRITES], sinks=ANSWERS)
    rng = bench.rng("stalled")
    await bench.reset()
    before = await fill(bench, rng)
    count = params["words"]
    offers = {name: [rng.randrange(config.depth) for _ in range(count)] for name in READS}
    stall = {ANSWERS[0]: 0.98} | dict.fromkeys(ANSWERS[1:], 0.0)
    flow = await bench.run(offers, dict.fromkeys(ANSWERS, count), p_stall=stall)
    check(before, offers, flow)
    assert flow.cycles[ANSWERS[1]][-1] < flow.cycles[ANSWERS[0]][-1] / 4


@cocotb.test()
@cocotb.parametrize(reader=range(config.readers))
async def requests_of_a_reader_that_takes_nothing(dut, reader):
    """A reader that takes nothing has as many requests taken as it has places for answers."""
    bench = Bench(dut, sources=[*READS, *WRITES], sinks=ANSWERS)
    await bench.reset()
    before = await fill(bench, bench.rng("places"))
    name, count = READS[reader], 3 * config.answers
    takes = dict.fromkeys(ANSWERS)
    held = await bench.run({name: [0] * count}, takes, stop_at=count + 10, p_stall=1.0)
    assert len(held.cycles[name]) == config.answers
    taken = await bench.run({}, {ANSWERS[reader]: config.answers})
    first = before[0][1] >> ADDRESS_BITS
    assert taken.words[ANSWERS[reader]] == [first] * config.answers


@cocotb.test()
async def full_rate(dut):
    """One read and one write per cycle and bank, however many ask; every client gets its share."""
    bench = Bench(dut, sources=[*READS, *WRITES], sinks=ANSWERS)
    rng = bench.rng("rate")
    await bench.reset()
    before = await fill(bench, rng)
    count, banks = 100, config.banks
    # Client k asks bank k alone; reads never meet the address of a write.
    offers = {name: [k % banks] * count for k, name in enumerate(READS)}
    for k, name in enumerate(WRITES):
        address = banks + k % banks
        offers[name] = [
            address | word >> ADDRESS_BITS << ADDRESS_BITS for word in write_words(rng, count)
        ]
    flow = await bench.run(offers, dict.fromkeys(ANSWERS, count))
    check(before, offers, flow)
    first_read = min(flow.cycles[name][0] for name in READS)
    first_answer = min(flow.cycles[name][0] for name in ANSWERS)
    assert first_answer - first_read == block_timing().latency
    for k, name in enumerate(READS):
        shares = len(range(k % banks, config.readers, banks))  # readers of its bank
        if config.answers >= 4 or shares > 1:
            assert max(flow.cycles[name]) < count * shares + 2, name
    for k, name in enumerate(WRITES):
        shares = len(range(k % banks, config.writers, banks))
        assert max(flow.cycles[name]) < count * shares + 2, name


@cocotb.test()
async def reset_in_mid_flow(dut):
    """Requests and answers before a reset leave no trace after it."""
    bench = Bench(dut, sources=[*READS, *WRITES], sinks=ANSWERS)
    rng = bench.rng("reset")
    for cut in range(1, 12):
        await bench.reset()
        offers = {name: [rng.randrange(config.depth) for _ in range(20)] for name in READS}
        offers |= {name: write_words(rng, 20) for name in WRITES}
        await bench.run(offers, dict.fromkeys(ANSWERS, 20), p_stall=0.5, stop_at=cut)
        await bench.reset()
        before = await fill(bench, rng)
        offers = {name: [rng.randrange(config.depth) for _ in range(20)] for name in READS}
        flow = await bench.run(offers, dict.fromkeys(ANSWERS, 20))
        check(before, offers, flow)
