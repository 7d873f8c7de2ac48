"""Runs inside the simulator, started by test_slot_memory.py: writers and readers of the slots."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from golden.memory.reference import memory_shared
from tb.bench import Bench, config, params
from tb.contract import block_timing

# kind: writer, request, answer, bits of the second part of an address
KINDS = {
    "entries": ("entry_request", "entries", 10),
    "outlier": ("outlier_request", "outlier", 14),
    "descriptor": ("slot", "descriptor", 0),
}
READERS = range(config.readers)
SECOND = {
    "entries": config.slot.rows,
    "outlier": config.slot.outliers_max,
    "descriptor": 1,
}
WRITERS = tuple(KINDS)
REQUESTS = {
    f"reader_{k}_{request}": (kind, f"reader_{k}_{answer}")
    for k in READERS
    for kind, (request, answer, _) in KINDS.items()
}
ANSWERS = tuple(answer for _, answer in REQUESTS.values())


def joined(kind, slot, second):
    return slot | second << 8


def words(rng, bench, kind, count, known):
    """Writes of random places; known: places that hold a word by then."""
    bits = len(bench._port[kind][0]) - 8 - KINDS[kind][2]
    made = []
    for _ in range(count):
        place = rng.randrange(config.slot.slots), rng.randrange(SECOND[kind])
        if rng.random() < 0.3:  # the ends of the memory
            place = rng.choice([0, config.slot.slots - 1]), rng.choice([0, SECOND[kind] - 1])
        known.append(place)
        word = rng.getrandbits(bits) << KINDS[kind][2] + 8
        made.append(word | joined(kind, *place))
    return made


class Watch:
    """Notes the cycle, place and word of every write and request."""

    def __init__(self, bench):
        self.writes = {kind: [] for kind in KINDS}
        self.reads = {name: [] for name in REQUESTS}
        self.running = True
        cocotb.start_soon(self._run(bench))

    async def _run(self, bench):
        cycle = 0
        while self.running:
            await ReadOnly()
            for name, word in bench.transfers((*WRITERS, *REQUESTS)):
                kind = name if name in KINDS else REQUESTS[name][0]
                bits = 8 + KINDS[kind][2]
                place = word & ((1 << bits) - 1)
                if name in KINDS:
                    self.writes[name].append((cycle, place, word >> bits))
                else:
                    self.reads[name].append((cycle, place))
            await FallingEdge(bench.dut.clk)
            cycle += 1


async def play(bench, seed, count, write_idle=0.0, zeroed=True, **flow):
    """First every place that is read is written, then reads and writes mix."""
    rng = bench.rng(f"slots {seed}")
    known = {kind: [] for kind in KINDS}
    first = {kind: words(rng, bench, kind, 12, known[kind]) for kind in KINDS}
    watch = Watch(bench)
    done = await bench.run(first, {})
    places = {kind: sorted(set(known[kind])) for kind in KINDS}
    places["descriptor"] = [(slot, 0) for slot in range(config.slot.slots)]
    again = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for _ in range(count):
            place = rng.choice(places[kind])
            bits = len(bench._port[kind][0]) - 8 - KINDS[kind][2]
            again[kind].append(joined(kind, *place) | rng.getrandbits(bits) << 8 + KINDS[kind][2])
    reads = {
        name: [joined(kind, *rng.choice(places[kind])) for _ in range(count)]
        for name, (kind, _) in REQUESTS.items()
    }
    takes = {answer: len(reads[name]) for name, (_, answer) in REQUESTS.items()}
    idle = dict.fromkeys(bench.sources, flow.pop("p_idle", 0.0))
    idle |= dict.fromkeys(KINDS, write_idle)
    result = await bench.run(again | reads, takes, p_idle=idle, **flow)
    watch.running = False
    assert all(len(first[kind]) == done.sent[kind] for kind in KINDS)
    if flow.get("stop_at") is not None:
        return result
    for name, (kind, answer) in REQUESTS.items():
        golden = memory_shared(watch.writes[kind], watch.reads[name])
        for n, (got, want) in enumerate(zip(result.words[answer], golden, strict=True)):
            if want is None and kind == "descriptor" and zeroed:
                want = 0  # not written since reset
            assert got == want, f"{answer} word {n}: got {got:#x}, not {want}"
    return result


async def started(dut):
    return await Bench.started(dut, sources=(*WRITERS, *REQUESTS), sinks=ANSWERS)


@cocotb.test()
@cocotb.parametrize(
    flow=[(0.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.0, 0.9, 0.9), (0.9, 0.0, 0.0), (0.3, 0.9, 0.0)]
)
async def random_flow(dut, flow):
    """flow: chance of idle readers, of idle writers, of stalled answers."""
    p_idle, write_idle, p_stall = flow
    bench = await started(dut)
    await play(bench, 1, params["count"], write_idle, p_idle=p_idle, p_stall=p_stall)


@cocotb.test()
async def a_stalled_reader_stops_no_other(dut):
    bench = await started(dut)
    stall = {a: 0.98 if a.startswith("reader_0") else 0.0 for a in ANSWERS}
    flow = await play(bench, 2, 40, p_stall=stall)
    if config.readers > 1:
        last = flow.cycles["reader_1_entries"][-1]
        assert last < 40 * 2 * config.readers < flow.cycles["reader_0_entries"][-1]


@cocotb.test()
async def cleared_by_reset(dut):
    """Nothing of the descriptors is served for ``slots`` cycles; then all are 0."""
    bench = await started(dut)
    await play(bench, 3, 30)
    for cut in (1, config.slot.slots // 2, 0):
        await bench.reset(1)
        if cut:  # a reset while the descriptors are cleared
            await bench.run({}, {}, stop_at=cut)
            await bench.reset(1)
        reads = {f"reader_{config.readers - 1}_slot": list(range(config.slot.slots))}
        answer = f"reader_{config.readers - 1}_descriptor"
        flow = await bench.run(reads, {answer: config.slot.slots})
        assert flow.words[answer] == [0] * config.slot.slots
        assert flow.cycles[f"reader_{config.readers - 1}_slot"][0] == config.slot.slots
        await play(bench, 4 + cut, 20, stop_at=9)


@cocotb.test()
async def full_rate(dut):
    """One reader alone: a word of each kind per cycle, two cycles from request to answer."""
    bench = await started(dut)
    await bench.run({}, {}, settle=config.slot.slots + 2)
    writes = {kind: [joined(kind, slot, 0) for slot in range(config.slot.slots)] for kind in KINDS}
    flow = await bench.run(writes, {})
    assert all(flow.cycles[kind] == list(range(config.slot.slots)) for kind in KINDS)
    names = [name for name in REQUESTS if name.startswith("reader_0")]
    reads = {name: writes[REQUESTS[name][0]] for name in names}
    takes = {REQUESTS[name][1]: config.slot.slots for name in names}
    flow = await bench.run(reads, takes)
    for name in names:
        assert flow.cycles[name] == list(range(config.slot.slots))
        first = block_timing().latency
        assert flow.cycles[REQUESTS[name][1]] == list(range(first, first + config.slot.slots))
