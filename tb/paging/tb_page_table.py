"""Runs inside the simulator, started by test_page_table.py: commands through PagingPageTable."""

import cocotb

from golden.paging.format import PageOp, Status
from golden.paging.pages import PageCommand, PageResponse, PageTable
from golden.paging.timing import page_table_cycles
from golden.paging.vectors import Traffic
from golden.words import layout_word
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT
from tb.bench import SILENCE, Bench, config
from tb.contract import block_timing

COMMANDS = 6000
INITIALISATION = max(config.pages, config.streams)  # cycles
SLOTS = config.kv.slots


def pack(layout, words: PageCommand | PageResponse) -> int:
    return layout_word(layout, **words._asdict())


def unpack(word: int) -> PageResponse:
    values = {
        name: word >> field.offset & (1 << field.width) - 1 for name, field in PAGE_RESPONSE_LAYOUT
    }
    return PageResponse(**{**values, "status": Status(values["status"])})


async def start(dut) -> Bench:
    bench = Bench(dut, sources=["command"], sinks=["response"])
    await bench.reset()
    return bench


async def ask(bench, pairs, **flow):
    """Give the commands; compare every answer and the free pages at the end."""
    words = [pack(PAGE_COMMAND_LAYOUT, command) for command, _ in pairs]
    silence = SILENCE + INITIALISATION + 2 * config.pages  # of a table, and of a TRIM of every page
    result = await bench.run({"command": words}, {"response": len(pairs)}, silence=silence, **flow)
    for n, (got, (command, expected)) in enumerate(
        zip(result.words["response"], pairs, strict=True)
    ):
        assert got == pack(PAGE_RESPONSE_LAYOUT, expected), (
            f"command {n}, {command}: got {unpack(got)}, golden {expected}"
        )
    return result


def cycles_at_most(command, answer) -> int:
    if command.op == PageOp.TRIM_STREAM:
        return 5 + 2 * config.pages
    return max(5, SLOTS + 2)


def free_pages(dut) -> int:
    return int(dut.free_pages.value)


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.5], p_stall=[0.0, 0.6])
async def random_commands(dut, p_idle, p_stall):
    """The table answers what an MMU asks, with misuse between."""
    bench = await start(dut)
    traffic = Traffic(config, bench.rng(f"commands {p_idle} {p_stall}"))
    await ask(bench, traffic.pairs(COMMANDS), p_idle=p_idle, p_stall=p_stall)
    assert free_pages(dut) == traffic.table.free_pages


@cocotb.test()
async def well_behaved(dut):
    """The table uses more pages without misuse; its consumer waits for valid."""
    bench = await start(dut)
    traffic = Traffic(config, bench.rng("commands"), misuse=0.0, vectors=1)
    await ask(bench, traffic.pairs(COMMANDS), late_ready=True)
    assert free_pages(dut) == traffic.table.free_pages


@cocotb.test(skip=not config.forks)
async def a_tip_comes_back(dut):
    """A child drops its tip, which then becomes a page of its own.

    An entry that keeps its tip then is right too: the page is the last when it comes back, and its
    follower is written anew.
    """
    bench = await start(dut)
    traffic = Traffic(config, bench.rng("tips"), misuse=0.0)
    table, pairs = traffic.table, []
    full = config.page_bytes // config.kv.kind(0).most
    children = back = 0

    def append(sequence, count):
        for _ in range(count):
            for vector in traffic.used:
                if not traffic.is_full and traffic.tokens[sequence, *vector] < config.max_tokens:
                    pairs.extend(traffic._append(sequence, vector))
        traffic.is_full = False

    def tokens_of(sequence):
        return [traffic.tokens[sequence, *vector] for vector in traffic.used]

    for _ in range(40):
        pairs += traffic._open()
        parent = traffic.answer.sequence
        append(parent, full + bench.rng("tokens").randrange(full))
        pairs += traffic._fork(parent)
        same = [each for each in traffic.start if tokens_of(each) == tokens_of(parent)]
        for child in [each for each in same if each != parent][:1]:
            children += 1
            pairs += traffic._free(parent)
            chains = [(child, *vector, slot) for vector in traffic.used for slot in range(SLOTS)]
            tips = [next(iter(table.chain(*each)), None) for each in chains]
            for _ in range(6):
                append(child, full)
                pairs += traffic._trim(child, min(tokens_of(child)))
                pairs += traffic._read(child)
                now = [list(table.chain(*each)) for each in chains]
                back += sum(tip in chain[1:] for tip, chain in zip(tips, now, strict=True))
        for sequence in sorted(traffic.start):
            pairs += traffic._free(sequence)
    await ask(bench, pairs)
    dut._log.info(f"{children} children, {back} tips came back")
    assert children
    assert free_pages(dut) == config.pages


@cocotb.test()
async def junk(dut):
    """Commands of random bits: an answer to each, and all pages still there."""
    bench = await start(dut)
    rng = bench.rng("junk")
    traffic = Traffic(config, rng)
    pairs = traffic.pairs(200)
    for _ in range(2000):
        fields = [rng.getrandbits(field.width) for _, field in PAGE_COMMAND_LAYOUT]
        command = PageCommand(*fields)
        pairs.append((command, traffic.table.command(command)))
    await ask(bench, pairs)
    assert free_pages(dut) == traffic.table.free_pages


@cocotb.test()
async def limits(dut):
    """Tokens near max_tokens, the length or the start: a few more or less, and one bit off."""
    bench = await start(dut)
    rng = bench.rng("limits")
    traffic = Traffic(config, rng)
    pairs = traffic.pairs(300)
    while not traffic.start:
        pairs += traffic.pairs(1)

    def near(limit: int) -> list[int]:
        bits = [1 << bit for bit in range(21)]
        tokens = {limit ^ bit for bit in bits} | {limit + n for n in (-2, -1, 0, 1, 2, *bits)}
        return rng.sample(found := [n for n in sorted(tokens) if 0 <= n < 1 << 21], len(found))

    def command(op, **fields) -> None:
        asked = PageCommand(op, **fields)
        pairs.append((asked, traffic.table.command(asked)))

    above = [token for token in near(config.max_tokens) if token > config.max_tokens]
    for sequence in sorted(traffic.start)[:3]:
        for layer, kv in traffic.used:
            where = {"sequence": sequence, "layer": layer, "kv": kv}
            tokens = traffic.tokens[sequence, layer, kv]
            for token in [*near(tokens), *near(traffic.start[sequence])]:
                command(PageOp.TRIM_CHECK, **where, token=token)
                command(PageOp.READ, **where, slot=rng.randrange(SLOTS), token=token)
                if token != tokens:
                    command(PageOp.BEGIN, **where, token=token)
        for token in [*above, config.max_tokens, *above]:
            command(PageOp.SET_START, sequence=sequence, token=token)
    await ask(bench, pairs)
    assert free_pages(dut) == traffic.table.free_pages


@cocotb.test()
async def initialisation(dut):
    """The first command is taken when all tables are written, no later."""
    bench = await start(dut)
    result = await ask(bench, [(PageCommand(PageOp.OPEN), PageResponse())])
    assert result.cycles["command"] == [INITIALISATION]


def where_of(command) -> tuple[int, int, int, int]:
    return command.sequence, command.layer, command.kv, command.slot


def pages_walked(table: PageTable, command) -> int | None:
    """The pages that a command of a table with forks walks over."""
    if not config.forks:
        return None
    if command.op == PageOp.FREE_STREAM:
        return pages_of(table, command)
    return table.shareable if command.op == PageOp.FORK_STREAM else 0


def pages_of(table: PageTable, command) -> int:
    """Pages of the stream that ``command`` names, if there is such a stream."""
    sequence, layer, _, slot = where_of(command)
    if sequence >= config.sequences or layer >= config.layers or slot >= SLOTS:
        return 0
    return len(list(table.chain(*where_of(command))))


@cocotb.test()
async def cycles(dut):
    """Each command is answered, and the next one taken, within the cycles of the block's timing."""
    timing = block_timing()
    assert (timing.start, timing.end) == ("command", "response")
    bench = await start(dut)
    traffic = Traffic(config, bench.rng("commands"))
    pairs = traffic.pairs(COMMANDS)
    result = await ask(bench, pairs)
    given, answered = result.cycles["command"], result.cycles["response"]
    assert given[1:] == answered[:-1]
    seen = {}
    table = PageTable(config)
    for n, (command, answer) in enumerate(pairs):
        took = answered[n] - given[n]
        assert timing.latency <= took <= timing.latency_max, command
        extended = table.extended if command.op == PageOp.ABORT else 0
        freed, alone = 0, 0
        walked = pages_walked(table, command)
        before = pages_of(table, command) if command.op == PageOp.TRIM_STREAM else 0
        table.command(command)
        if command.op == PageOp.TRIM_STREAM and answer.status == Status.OK:
            pages = pages_of(table, command)
            freed, alone = before - pages, 2 * (pages < 2)
        name = PageOp(command.op).name if command.op in set(PageOp) else ""
        expected = page_table_cycles(name, SLOTS, extended=extended, freed=freed, walked=walked)
        if answer.status == Status.OK:
            assert took == expected - alone, command
            seen.setdefault(PageOp(command.op).name, set()).add(took)
        else:
            assert took <= expected, command
    assert timing.interval == timing.latency == min(map(min, seen.values()))
    for name, took in seen.items():
        dut._log.info("%s: %s cycles", name, sorted(took))


@cocotb.test()
async def reset_in_the_middle(dut):
    """Whatever the tables hold, a transaction or a chain half gone: all of it is forgotten."""
    bench = await start(dut)
    rng = bench.rng("cut")
    for attempt in range(12):
        traffic = Traffic(config, bench.rng(f"commands {attempt}"))
        words = [pack(PAGE_COMMAND_LAYOUT, command) for command, _ in traffic.pairs(300)]
        stop = rng.randrange(INITIALISATION + (0 if attempt == 0 else 900))
        await bench.run({"command": words}, {"response": len(words)}, p_stall=0.3, stop_at=stop)
        await bench.reset(1)
    traffic = Traffic(config, bench.rng("after"))
    await ask(bench, traffic.pairs(1000))
    assert free_pages(dut) == traffic.table.free_pages
