"""Runs inside the simulator, started by test_mmu.py: PagingMmu under a host and a memory."""

import random

import cocotb

from golden.paging.format import Op, PageOp, Status
from golden.paging.mmu import Mmu, Request, Word
from golden.paging.timing import page_table_cycles
from hdl.paging.mmu import CHANGES
from hdl.paging.mmu_control import mmu_fork_cycles, mmu_trim_cycles
from tb.axi.support.host import base_of
from tb.bench import config, params
from tb.contract import block_timing
from tb.paging.support.mmu_host import (
    CHANNELS,
    ONCE,
    OUTLETS,
    Host,
    Shadow,
    random_records,
    transfers_of,
)

CACHE, KV = config.cache, config.cache.kv
FORKS = (Op.FORK,) if config.cache.forks else ()
CALM = {"idle": 0.0, "stall": 0.0, "latency": (1, 1)}
ROUGH = {"idle": 0.4, "stall": 0.4, "latency": (1, 60)}
STORM = {
    "idle": {"request": 0.1, "record": 0.9, "w": 0.6, "axi__r": 0.5, "axi__b": 0.9},
    "stall": {"status": 0.9, "info": 0.7, "axi__ar": 0.5}
    | dict(zip(CHANNELS, (0.2, 0.85), strict=False)),
    "latency": (20, 40),
}


def faults(chance: float, salt: int = 0, reads: float = 1.0):
    """Responses: SLVERR or DECERR for ``chance`` of writes, for reads ``reads`` times as often."""

    def respond(address: int, is_write: bool) -> int:
        rng = random.Random(f"{salt} {address} {is_write}")
        return rng.choice([2, 3]) if rng.random() < chance * (1 if is_write else reads) else 0

    return respond


def moody(chance: float, salt: int):
    """Answers as ``faults``, but a word written anew is answered anew: a failed one may succeed."""
    rng = random.Random(salt)
    return lambda address, is_write: rng.choice([2, 3]) if rng.random() < chance else 0


async def start(dut, name: str, *, start_clock: bool = True, **flow) -> Host:
    host = Host(dut, config, name=name, base=base_of(name, config), **flow)
    await host.reset(start_clock=start_clock)
    return host


def spoiled(rng: random.Random, records: list[bytes]) -> list[bytes]:
    """Records of which some have no size that such a record has."""
    records = list(records)
    slot = rng.randrange(len(records))
    records[slot] = rng.choice([b"", records[slot] + b"x" * KV.record_bytes_max])
    if rng.random() < 0.3:
        records = [b""] * len(records)
    return records


def token_of(shadow: Shadow, sequence, vector) -> int:
    """Tokens that a vector has when all APPENDs under way have ended well."""
    if sequence is None:
        return 0
    return len(sequence.vectors[vector]) + len(shadow.under_way(Op.APPEND, sequence, vector))


class Requests:
    """Random requests that leave to chance what may be: no READ of tokens that may be absent."""

    def __init__(self, rng: random.Random, shadow: Shadow, *, wrong: float = 0.1):
        self.rng, self.shadow, self.wrong = rng, shadow, wrong
        self.sent = 0
        # Not all where there are many: they shall grow.
        self.vectors = [(layer, kv) for layer in range(CACHE.layers) for kv in range(2)]
        if len(self.vectors) > 4:
            self.vectors = rng.sample(self.vectors, 4)

    def step(self) -> None:
        shadow, rng = self.shadow, self.rng
        if shadow.queued:
            return
        ops = {Op.OPEN: 1, Op.APPEND: 60, Op.READ: 25, Op.TRIM: 2, Op.FREE: 0.7, -1: 1}
        if CACHE.forks:
            ops |= {Op.FORK: 5, Op.FREE: 3}
        op = rng.choices([*ops], [*ops.values()])[0]
        tag = rng.getrandbits(8)
        if op == -1:
            unknown = [each for each in range(Op.THRESHOLDS, 16) if each not in ops]
            self._send(Request(rng.choice(unknown), tag, rng.getrandbits(8)))
            return
        if op == Op.OPEN:
            self._send(Request(op, tag))
            return
        opening = bool(shadow.under_way(Op.OPEN) or shadow.under_way(Op.FORK))
        if rng.random() < self.wrong / 3 and not opening:
            unknown = [n for n in range(256) if n not in shadow.open]
            near = [n for n in unknown if n < CACHE.sequences + 2]
            sequence = rng.choice(near or unknown)
            self._vector(op, tag, sequence, None)
            return
        if shadow.open:
            sequence = rng.choice(list(shadow.open))
            self._vector(op, tag, sequence, shadow.open[sequence])

    def _send(self, request: Request, records=()) -> None:
        self.sent += 1
        self.shadow.send(request, records)

    def _vector(self, op, tag, number, sequence) -> None:
        shadow, rng = self.shadow, self.rng
        is_wrong = rng.random() < self.wrong
        layer, kv = rng.choice(self.vectors)
        if op == Op.APPEND and sequence and rng.random() < 0.7:
            # The shortest, so that trims have something to forget.
            layer, kv = min(self.vectors, key=lambda each: len(sequence.vectors[each]))
        tokens = len(sequence.vectors[layer, kv]) if sequence else rng.randrange(4)
        coming = shadow.under_way(Op.APPEND, sequence, (layer, kv)) if sequence else []
        if is_wrong and rng.random() < 0.3:
            layer = rng.randrange(CACHE.layers, 256)
        request = Request(op, tag, number, layer, kv)
        if op == Op.FREE:
            self._send(request)
        elif op == Op.FORK:
            self._send(
                request._replace(
                    token=rng.getrandbits(21)
                    if is_wrong
                    else token_of(shadow, sequence, self.vectors[0])
                )
            )
        elif op == Op.TRIM:
            shortest = min(
                len(sequence.vectors[layer, kv]) if sequence else 4
                for layer in range(CACHE.layers)
                for kv in range(2)
            )
            token = rng.randint(0, shortest) if not is_wrong else rng.getrandbits(21)
            self._send(request._replace(token=token))
        elif op == Op.APPEND:
            records = random_records(rng, KV, rng.choice([0.1, 0.5]))
            token = tokens + len(coming)
            if is_wrong and not coming:
                if rng.random() < 0.5:
                    records = spoiled(rng, records)
                else:
                    token = rng.choice([token + 1, max(token - 1, 0), rng.getrandbits(21)])
            self._send(request._replace(token=token), records)
        else:
            head = rng.randrange(KV.heads)
            heads = rng.randint(1, KV.heads - head)
            if is_wrong and rng.random() < 0.4:
                head, heads = rng.choice(
                    [
                        (head, 0),
                        (KV.heads, 1),
                        (head, 255),
                        (rng.getrandbits(8), rng.getrandbits(8)),
                    ]
                )
            token = rng.choice([tokens, tokens, rng.randint(0, tokens)])
            if is_wrong:
                token = rng.choice([tokens + len(coming) + 1, rng.getrandbits(21)])
            self._send(request._replace(head=head, heads=heads, token=token))


async def drain(host: Host, shadow: Shadow) -> None:
    """Until every request is done; ``idle`` is low while one is inside."""
    was_inside = False
    while not shadow.is_done:
        await host.step()
        is_inside = any(shadow.waiting.values())
        assert not (was_inside and is_inside and host.dut.idle.value), "idle with a request inside"
        was_inside = is_inside


async def free_all(host: Host, shadow: Shadow) -> None:
    """Free everything: all pages come back, and nothing is left anywhere."""
    await drain(host, shadow)
    for number in list(shadow.open):
        shadow.send(Request(Op.FREE, tag=number, sequence=number))
    await drain(host, shadow)
    for _ in range(3):
        await host.step()
    assert int(host.dut.free_pages.value) == CACHE.pages
    assert host.dut.idle.value


async def run_requests(host: Host, shadow: Shadow, requests: Requests, count: int) -> None:
    while requests.sent < count:
        requests.step()
        await host.step()
        if host.cycle % 64 == 0:
            shadow.compare()


@cocotb.test()
@cocotb.parametrize(flow=["calm", "rough", "storm"], chance=[0.0, 0.001])
async def traffic(dut, flow, chance):
    """Requests of all kinds at once, frees and trims in between, out of pages again and again."""
    host = await start(
        dut,
        "traffic",
        respond=faults(chance, reads=20),
        **{"calm": CALM, "rough": ROUGH, "storm": STORM}[flow],
    )
    shadow = Shadow(host)
    requests = Requests(host.rng, shadow)
    count = params["requests"] // (1 if flow == "calm" else 3)
    await run_requests(host, shadow, requests, count)
    # Places that fail may fail every READ of a few sequences.
    needed = [(op, Status.OK) for op in (Op.OPEN, Op.APPEND, Op.READ, *FORKS)]
    while not all(shadow.counts[each] for each in needed):
        assert requests.sent < 10 * count, f"{dict(shadow.counts)}"
        await run_requests(host, shadow, requests, requests.sent + 20)
    await free_all(host, shadow)
    host.dut._log.info(f"{host.cycle} cycles: {dict(shadow.counts)}")
    assert shadow.counts[Op.FREE, Status.OK]


class Sequential:
    """One request at a time: everything equals golden, words and free pages too."""

    def __init__(self, host: Host, golden: Mmu):
        self.host, self.golden = host, golden
        self.statuses, self.got = [], {name: [] for name in ("info", *CHANNELS)}
        self.opened = 0  # number that the latest OPEN gave
        self.written: set[int] = set()  # pages
        host.written = lambda page: self.written.add(page)
        host.events["status"] = self.statuses.append
        for name, found in self.got.items():
            host.events[name] = found.append

    async def run(self, request: Request, records=()) -> Status:
        host = self.host
        answer = self.golden.request(request, records)
        host.send(request, records)
        await host.until(lambda: self.statuses and host.dut.idle.value)
        status = self.statuses.pop()
        assert not self.statuses
        assert status == {
            "tag": request.tag,
            "op": request.op,
            "status": answer.status,
            "sequence": answer.sequence,
        }, f"{request}: {Status(status['status'])!r}, golden {answer.status!r}"
        heads = answer.heads
        assert self.got["info"] == [
            {
                "tag": request.tag,
                "head": head.head,
                "tokens": head.tokens,
                **head.skips,
                "first": int(head is heads[0]),
                "last": int(head is heads[-1]),
            }
            for head in heads
        ], f"{request}"
        wanted = {
            each.name: list(answer.transfers.get(each.kind.name, ()))
            if each.name in ONCE
            else [word for head in heads for word in head.transfers[each.kind.name]]
            for each in OUTLETS
            if each.kv in (None, request.kv)
        }
        wanted = {name: [] for name in CHANNELS} | wanted
        for name, words in wanted.items():
            assert [Word(**word) for word in self.got[name]] == words, f"{request}: {name}"
        for found in self.got.values():
            found.clear()
        assert int(host.dut.free_pages.value) == self.golden.free_pages
        if request.op == Op.OPEN:
            self.opened = answer.sequence
        shared = [page for page in self.written if self.golden.table.sharers(page)]
        assert not shared, f"{request} writes shared pages {shared}"
        self.written.clear()
        return answer.status


@cocotb.test()
@cocotb.parametrize(flow=["calm", "rough"], chance=[0.0, 0.02])
async def one_at_a_time(dut, flow, chance):
    """Random requests in turn, all statuses; statuses, words and pages are golden's."""
    respond = faults(chance, 1)
    flow = {"calm": CALM, "rough": ROUGH}[flow]
    host = await start(dut, "sequential", respond=respond, **flow)
    bench = Sequential(host, Mmu(CACHE, config.data_bits, respond))
    rng, counts = host.rng, {}
    sequences: dict[int, dict] = {}
    shapes = [(layer, kv) for layer in range(CACHE.layers) for kv in range(2)]
    shapes = rng.sample(shapes, min(len(shapes), 4))
    for _ in range(params["requests"] // 2):
        ops = {0: 1, 1: 60, 2: 20, 3: 3, 4: 0.5, 5: 0.5, 9: 0.5} | dict.fromkeys(FORKS, 5)
        op = rng.choices([*ops], [*ops.values()])[0]
        op = op if sequences or rng.random() < 0.1 else Op.OPEN
        number = rng.choice(list(sequences)) if sequences else 0
        if rng.random() < 0.02:
            number = rng.choice([CACHE.sequences, CACHE.sequences - 1, 255])
        layer, kv = rng.choice(shapes)
        vectors = sequences.get(number, {})
        if FORKS and op == Op.APPEND and rng.random() < 0.8:  # a FORK wants all of one length
            layer, kv = min(shapes, key=lambda each: vectors.get(each, 0))
        token = vectors.get((layer, kv), 0)
        if rng.random() < 0.05:
            token = rng.choice([token + 1, 0, rng.getrandbits(21)])
        if rng.random() < 0.02:
            layer = rng.choice([CACHE.layers, 255])
        if op == Op.TRIM and rng.random() < 0.8:
            token = rng.randint(0, min(
                vectors.get((layer, kv), 0) for layer in range(CACHE.layers) for kv in range(2)
            ))  # fmt: skip
        head = rng.randrange(KV.heads)
        heads = rng.randint(1, KV.heads - head) if rng.random() < 0.95 else rng.choice([0, 99])
        request = Request(op, rng.getrandbits(8), number, layer, kv, head, heads, token)
        records = random_records(rng, KV, rng.choice([0.1, 0.9])) if op == Op.APPEND else []
        if records and rng.random() < 0.05:
            records = spoiled(rng, records)
        before = set(sequences)
        status = await bench.run(request, records)
        counts[op, status] = counts.get((op, status), 0) + 1
        if op in (Op.OPEN, *FORKS) and status == Status.OK:
            new = next(n for n in range(CACHE.sequences) if n not in before)
            sequences[new] = {} if op == Op.OPEN else dict(vectors)
        elif op == Op.FREE and status == Status.OK:
            del sequences[number]
        elif op == Op.APPEND and status == Status.OK:
            vectors[layer, kv] = token + 1
    dut._log.info(f"{host.cycle} cycles: {counts}")
    for number in list(sequences):
        await bench.run(Request(Op.FREE, sequence=number))
    assert int(dut.free_pages.value) == CACHE.pages


async def filled(dut, name: str, tokens: int, **flow) -> tuple[Host, Shadow]:
    """Sequence 0 with ``tokens`` tokens in vector (0, 0), sequence 1 with one."""
    host = await start(dut, name, **flow)
    shadow = Shadow(host)
    shadow.send(Request(Op.OPEN))
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    for token in range(tokens):
        shadow.send(Request(Op.APPEND, token=token), random_records(host.rng, KV))
    shadow.send(Request(Op.APPEND, sequence=1), random_records(host.rng, KV))
    await host.until(lambda: shadow.is_done)
    assert shadow.counts[Op.APPEND, Status.OK] == tokens + 1
    return host, shadow


@cocotb.test()
@cocotb.parametrize(stalled=["info", *CHANNELS, "status"])
async def one_stalls_alone(dut, stalled):
    """A consumer that takes nothing stops no other: those of all READs accepted get everything."""
    tokens = min(CACHE.max_tokens, 24)
    host, shadow = await filled(dut, "stalled", tokens)
    host.stall[stalled] = 1.0
    count = len(host.moved[stalled])
    reads = config.reads if stalled != "info" else 1
    for n in range(reads):
        shadow.send(Request(Op.READ, n, head=0, heads=KV.heads, token=tokens))
    others = [name for name in ("info", *CHANNELS) if name != stalled]
    lasts = transfers_of(Request(Op.READ, heads=KV.heads))
    await host.until(
        lambda: all(
            sum(word["last"] if name == "info" else word.last for word in shadow.got[name])
            >= reads * (1 if name == "info" else lasts[name])
            for name in others
        ),
    )
    assert len(host.moved[stalled]) == count
    # Nor does it stop an APPEND, whose status waits where statuses are not taken.
    before = len(host.moved["axi__b"])
    if stalled != "status":
        shadow.send(Request(Op.APPEND, sequence=1, token=1), random_records(host.rng, KV))
        await host.until(lambda: shadow.counts[Op.APPEND, Status.OK] == tokens + 2)
    else:
        shadow.send(Request(Op.APPEND, sequence=1, token=1), random_records(host.rng, KV))
        await host.until(lambda: len(host.moved["axi__b"]) >= before + KV.slots)
    host.stall[stalled] = 0.0
    await free_all(host, shadow)


@cocotb.test(skip=not config.kv_apart)
@cocotb.parametrize(stalled=[0, 1])
async def k_and_v_apart(dut, stalled):
    """READs of K whose words nobody takes stop no words of V, and the other way round.

    Statuses keep the order of the READs.

    Shown to fail:

    - a READ that goes to the channels of both;
    - a status that waits for the words of both;
    - a status with the errors of both;
    - a status that takes the ends of both.
    """
    tokens = min(CACHE.max_tokens, 24)
    host, shadow = await filled(dut, "apart", tokens)
    for token in range(tokens):
        shadow.send(Request(Op.APPEND, kv=1, token=token), random_records(host.rng, KV))
    await host.until(lambda: shadow.is_done)
    mine, others = (
        [each.name for each in OUTLETS if each.kv == kv] for kv in (stalled, 1 - stalled)
    )
    host.stall |= dict.fromkeys(mine, 1.0)
    for n in range(config.reads):
        kv = stalled ^ (n % 2)
        shadow.send(Request(Op.READ, n, kv=kv, heads=KV.heads, token=tokens))
    each = transfers_of(Request(Op.READ, kv=1 - stalled, heads=KV.heads))
    await host.until(
        lambda: all(
            sum(word.last for word in shadow.got[name]) == config.reads // 2 * each[name]
            for name in others
        )
    )
    assert not any(shadow.got[name] for name in mine)
    assert not any(op == Op.READ for op, _, _ in shadow.results)
    host.stall |= dict.fromkeys(mine, 0.0)
    await host.until(lambda: shadow.is_done)
    # An error of one vector is not in the statuses of the other.
    seen: list[set[int]] = []
    for kv in range(2):
        places: set[int] = set()
        host.respond = lambda address, is_write, places=places: places.add(address) or 0
        shadow.send(Request(Op.READ, kv=kv, heads=KV.heads, token=tokens))
        await host.until(lambda: shadow.is_done)
        seen.append(places)
    for kv, response in ((stalled, 2), (1 - stalled, 3)):
        bad = seen[kv] - seen[1 - kv]
        host.respond = lambda address, is_write, bad=bad, response=response: (
            response if address in bad else 0
        )
        for each in (0, 1, 1, 0):
            shadow.send(Request(Op.READ, kv=each, heads=KV.heads, token=tokens))
        await host.until(lambda: shadow.is_done)
        failed = [status != Status.OK for _, status, _ in shadow.results[-4:]]
        assert failed == [each == kv for each in (0, 1, 1, 0)]
    host.respond = lambda address, is_write: 0
    await free_all(host, shadow)


@cocotb.test()
async def an_append_that_waits_blocks_no_read(dut):
    """Records that do not come stop their APPEND and all that must wait for it, nothing else."""
    tokens = min(CACHE.max_tokens, 8) - 1
    host, shadow = await filled(dut, "waiting", tokens)
    host.idle["record"] = 1.0
    shadow.send(Request(Op.APPEND, 1, token=tokens), random_records(host.rng, KV))
    shadow.send(Request(Op.FREE, 2, sequence=0))  # waits for the APPEND
    for n in range(3 * config.reads):
        shadow.send(Request(Op.READ, n, sequence=n % 2, heads=1, token=1))
    shadow.send(Request(Op.OPEN, 3))
    shadow.send(Request(Op.TRIM, 4, sequence=1, token=0))
    await host.until(
        lambda: sum(shadow.counts[Op.READ, status] for status in Status) == 3 * config.reads
    )
    await host.until(lambda: shadow.counts[Op.OPEN, Status.OK] == 3)
    assert shadow.counts[Op.READ, Status.SEQUENCE_UNKNOWN] == (3 * config.reads + 1) // 2
    assert not shadow.counts[Op.FREE, Status.OK]
    host.idle["record"] = 0.0
    await free_all(host, shadow)
    assert shadow.counts[Op.TRIM, Status.OK] == 1


@cocotb.test()
async def changes_wait_in_every_place(dut):
    """A TRIM or FREE waits for the only READ or APPEND of its sequence, in every place of a ring.

    An APPEND after a TRIM waits for the TRIM. A TRIM of another sequence waits for none of them.

    Shown to fail: one bit of the sequence wrong in one place of a ring; a place that is not live.
    """
    host, shadow = await filled(dut, "places", 1)

    async def hold(op, port, chances, mine, change) -> None:
        """One request under way, a ``change`` of its sequence, and one of another sequence."""
        (other,) = shadow.open.keys() - {mine}
        length = len(shadow.open[mine].vectors[0, 0])
        chances[port] = 1.0
        if op == Op.READ:
            shadow.send(Request(op, sequence=mine, heads=KV.heads, token=1))
        else:
            shadow.send(Request(op, sequence=mine, token=length), random_records(host.rng, KV))
        shadow.send(Request(Op.TRIM, sequence=other))
        done = len(shadow.results)
        await host.until(lambda: len(shadow.results) > done)
        shadow.send(Request(change, sequence=mine))
        records = len(host.moved["record"])
        if op == Op.READ and change == Op.TRIM:
            later = Request(Op.APPEND, sequence=mine, token=length)
            shadow.send(later, random_records(host.rng, KV))
        free = int(dut.free_pages.value)
        for _ in range(400):
            await host.step()
        assert len(shadow.results) == done + 1, "a change before the end of what it waits for"
        assert len(host.moved["record"]) <= records + (op == Op.APPEND) * KV.slots
        assert int(dut.free_pages.value) == free
        chances[port] = 0.0
        await host.until(lambda: shadow.is_done)

    for op, port, chances in (
        (Op.READ, CHANNELS[0], host.stall),
        (Op.APPEND, "axi__b", host.idle),
    ):
        for mine in list(shadow.open):
            for _ in range(max(config.reads, config.appends, CHANGES)):
                await hold(op, port, chances, mine, Op.TRIM)
            await hold(op, port, chances, mine, Op.FREE)
            shadow.send(Request(Op.OPEN))
            await host.until(lambda: shadow.is_done)
            sequence = shadow.results[-1][2]
            shadow.send(Request(Op.APPEND, sequence=sequence), random_records(host.rng, KV))
            await host.until(lambda: shadow.is_done)
    assert shadow.counts[Op.FREE, Status.OK] == 4
    assert shadow.counts[Op.TRIM, Status.OK] == sum(
        count for (op, _), count in shadow.counts.items() if op == Op.TRIM
    )
    await free_all(host, shadow)


@cocotb.test()
async def changes_in_a_row(dut):
    """The MMU does as many TRIMs and FREEs as wait inside, and more."""
    host, shadow = await filled(dut, "changes", min(CACHE.max_tokens, 8) - 1)
    for number in (*shadow.open, *shadow.open):
        shadow.send(Request(Op.TRIM, number, sequence=number, token=1))
    await free_all(host, shadow)


@cocotb.test()
async def refused_appends_take_their_records(dut):
    """Whatever refuses an APPEND, the records of the next one are its own; zero sizes too."""
    host, shadow = await filled(dut, "refused", 1)
    rng = host.rng
    none = [b""] * KV.slots
    cases = [
        (Request(Op.APPEND, layer=CACHE.layers), Status.BAD_REQUEST),
        (Request(Op.APPEND, sequence=CACHE.sequences - 1), Status.SEQUENCE_UNKNOWN),
        (Request(Op.APPEND, token=2), Status.TOKEN_ORDER),
        (Request(Op.APPEND, token=1), Status.VECTOR_LENGTH),
    ]
    for request, status in cases:
        for records in (
            none,
            [b"", *random_records(rng, KV)[1:]],
            spoiled(rng, random_records(rng, KV)),
        ):
            shadow.send(request, records)
            await host.until(lambda: shadow.is_done)
            assert shadow.results[-1][1] == status, request
            assert host.dut.idle.value
    for request, status in cases[:3]:
        shadow.send(request, random_records(rng, KV))
        await host.until(lambda: shadow.is_done)
        assert shadow.results[-1][1] == status
    for token in range(1, 4):
        shadow.send(Request(Op.APPEND, token=token), random_records(rng, KV))
    shadow.send(Request(Op.READ, heads=KV.heads, token=1))
    await host.until(lambda: shadow.is_done)
    shadow.send(Request(Op.READ, heads=KV.heads, token=4))
    await free_all(host, shadow)


@cocotb.test()
@cocotb.parametrize(chance=[0.0, 0.05])
async def statuses_come_behind_the_answers(dut, chance):
    """Neither a commit nor a page that goes back while a write of the APPEND has no answer."""
    host = await start(dut, "behind", latency=(150, 150), respond=moody(chance, 3))
    shadow = Shadow(host)
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    count, refused = 0, 0
    for n in range(12):
        records = random_records(host.rng, KV)
        if n % 3 == 2:
            records[-1] = b""  # refused when the others are in flight
        shadow.send(Request(Op.APPEND, n, token=count), records)
        free = int(dut.free_pages.value)
        while not shadow.is_done:
            # The pages of the transaction come back with its rollback, and go with its end.
            now = int(dut.free_pages.value)
            assert now <= free or not host.writes_under_way, "a page back before its answers"
            free = now
            await host.step()
        status = shadow.results[-1][1]
        assert not host.writes_under_way, f"{status!r} before the answers"
        count += status == Status.OK
        refused += status == Status.VECTOR_LENGTH
    assert count
    assert refused == 4
    await free_all(host, shadow)


@cocotb.test()
async def statuses_come_after_the_words(dut):
    """No APPEND ends, refused or not, before the last word of its records is taken."""
    host, shadow = await filled(dut, "late words", 1)
    for token, status in ((5, Status.TOKEN_ORDER), (1, Status.OK)):
        shadow.send(Request(Op.APPEND, token=token), random_records(host.rng, KV))
        late = host.queues["w"].pop()
        before, records = len(shadow.results), len(host.moved["record"])
        for _ in range(600):
            await host.step()
        assert len(host.moved["record"]) == records + KV.slots
        assert len(shadow.results) == before, "a status before the last word"
        host.queues["w"].append(late)
        await host.until(lambda: shadow.is_done)
        assert shadow.results[-1][1] == status
    await free_all(host, shadow)


@cocotb.test()
async def decode_errors_before_slave_errors(dut):
    """Two heads of one READ fail, in either order: the READ ends with DECODE_ERROR."""
    tokens = min(CACHE.max_tokens, 4)
    host, shadow = await filled(dut, "two errors", tokens)
    seen: list[set[int]] = []
    for head in range(2):
        places: set[int] = set()
        host.respond = lambda address, is_write, places=places: places.add(address) or 0
        shadow.send(Request(Op.READ, head=head, heads=1, token=tokens))
        await host.until(lambda: shadow.is_done)
        seen.append(places)
    for first, second in ((3, 2), (2, 3), (2, 2)):
        answers = dict.fromkeys(seen[0] - seen[1], first)
        answers |= dict.fromkeys(seen[1] - seen[0], second)
        host.respond = lambda address, is_write, answers=answers: answers.get(address, 0)
        shadow.send(Request(Op.READ, heads=2, token=tokens))
        await host.until(lambda: shadow.is_done)
        worst = {2: Status.SLAVE_ERROR, 3: Status.DECODE_ERROR}[max(first, second)]
        assert shadow.results[-1][1] == worst
    host.respond = lambda address, is_write: 0
    await free_all(host, shadow)


@cocotb.test()
async def length_limit(dut):
    """The longest sequence, one token more, and reads of all of it over all its pages."""
    host = await start(dut, "longest")
    shadow = Shadow(host)
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    assert CACHE.max_tokens <= 256, "choose a configuration with short sequences"
    for token in range(CACHE.max_tokens + 1):
        shadow.send(Request(Op.APPEND, token=token), random_records(host.rng, KV, 0.9))
    await host.until(lambda: shadow.is_done)
    assert shadow.counts[Op.APPEND, Status.LENGTH_LIMIT] == 1
    for head in range(KV.heads):
        shadow.send(Request(Op.READ, head=head, heads=1, token=CACHE.max_tokens))
    shadow.send(Request(Op.READ, heads=KV.heads, token=CACHE.max_tokens))
    await free_all(host, shadow)
    assert shadow.counts[Op.READ, Status.OK] == KV.heads + 1


@cocotb.test()
async def latency(dut):
    """A READ's first word comes after the cycles of the block's timing and those of the memory."""
    timing, first = block_timing(), (*ONCE, *CHANNELS)[0]
    kind = next(each.kind.name for each in OUTLETS if each.name == first)
    assert timing.end == f"its first word of {kind}"
    host, shadow = await filled(dut, "latency", 2, **CALM)
    for memory, head, tokens in ((1, 0, 2), (30, KV.heads - 1, 1)):
        host.latency = (memory, memory)
        before = len(host.moved[first])
        shadow.send(Request(Op.READ, head=head, heads=1, token=tokens))
        await host.until(lambda: shadow.is_done)
        took = host.moved[first][before] - host.moved["request"][-1]
        assert took == timing.latency + memory, f"{took} cycles, {memory} of them of the memory"
    await free_all(host, shadow)


class Trims:
    """The steps of the page table in a TRIM of golden's."""

    def __init__(self, golden: Mmu):
        self.table, self.run = golden.table, golden.table.command
        self.checks, self.streams = 0, []
        golden.table.command = self._command

    def _command(self, command):
        before = self.table.free_pages
        answer = self.run(command)
        if command.op == PageOp.TRIM_CHECK:
            self.checks += 1
        if command.op == PageOp.TRIM_STREAM:
            where = command.sequence, command.layer, command.kv, command.slot
            is_alone = len(list(self.table.chain(*where))) < 2
            freed = self.table.free_pages - before
            cycles = page_table_cycles("TRIM_STREAM", KV.slots, freed=freed)
            self.streams.append(cycles - 2 * is_alone)
        return answer

    def cycles(self) -> int:
        """The cycles of the TRIM since the last call."""
        found = mmu_trim_cycles(2 * CACHE.layers, self.checks, self.streams)
        self.checks, self.streams = 0, []
        return found


@cocotb.test()
async def trims(dut):
    """Windows slide: a TRIM takes a walk over the vectors that give pages back, or 9 cycles.

    Two sequences live at once, each with a window of its own, and change after each request.

    Shown to fail:

    - bounds that all sequences share;
    - a mark of written bounds that all sequences share;
    - a bound that a FREE leaves to the next sequence;
    - the bound of the last vector for the sequence;
    - a stream of one page without a bound;
    - a bound one token too high.
    """
    host = await start(dut, "trims", **CALM)
    golden = Mmu(CACHE, config.data_bits)
    bench, work = Sequential(host, golden), Trims(golden)
    vectors = [(layer, kv) for layer in range(CACHE.layers) for kv in range(2)]
    counts = {"alone": 0, "walk": 0, "refused": 0, "freed": 0}

    async def trim(sequence: int, token: int) -> None:
        free = golden.free_pages
        status = await bench.run(Request(Op.TRIM, sequence=sequence, token=token))
        took = host.moved["status"][-1] - host.moved["request"][-1]
        is_alone, wanted = not work.checks, work.cycles()
        assert took == wanted if status == Status.OK else took <= wanted, f"{took} for {wanted}"
        kind = "refused" if status else "alone" if is_alone else "walk"
        counts[kind] += 1
        counts["freed"] += golden.free_pages - free
        assert not is_alone or golden.free_pages == free

    async def life():
        """Takes a sequence from OPEN to FREE; another one may go on at each ``yield``."""
        assert await bench.run(Request(Op.OPEN)) == Status.OK
        sequence = bench.opened
        await trim(sequence, 0)
        window = host.rng.randint(3, 8)
        for token in range(min(CACHE.max_tokens, 50)):
            for layer, kv in vectors:
                yield
                request = Request(Op.APPEND, sequence=sequence, layer=layer, kv=kv, token=token)
                if host.rng.random() < 0.1:  # rolled back, then again
                    wrong = spoiled(host.rng, random_records(host.rng, KV))
                    assert await bench.run(request, wrong) == Status.VECTOR_LENGTH
                records = random_records(host.rng, KV)
                assert await bench.run(request, records) == Status.OK
            targets = [max(token - window, 0), host.rng.randint(0, max(token - window, 0))]
            if host.rng.random() < 0.2:
                targets.insert(0, token + 2 + host.rng.randrange(3))  # beyond the length
            if host.rng.random() < 0.1:
                targets += [token + 1] * 2  # all there is
            for target in targets:
                yield
                await trim(sequence, target)
        assert await bench.run(Request(Op.FREE, sequence=sequence)) == Status.OK

    # As many lives again, in sequences with the numbers of the first.
    lives = [life() for _ in range(4 if CACHE.sequences > 1 else 2)]
    live = lives[: len(lives) // 2]
    waiting = lives[len(live) :]
    while live:
        one = host.rng.choice(live)
        if await anext(one, "ended") == "ended":
            live.remove(one)
            live += waiting[:1]
            del waiting[:1]
    dut._log.info(f"TRIMs: {counts}")
    assert all(counts.values())
    assert int(dut.free_pages.value) == CACHE.pages


VECTORS = [(layer, kv) for layer in range(CACHE.layers) for kv in range(2)]


async def prompt(dut, name: str, tokens: int, **flow) -> tuple[Host, Shadow]:
    """Sequence 0 with ``tokens`` tokens in every vector."""
    host = await start(dut, name, **flow)
    shadow = Shadow(host)
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    append_to(shadow, host.rng, 0, 0, tokens)
    await host.until(lambda: shadow.is_done)
    return host, shadow


def append_to(shadow: Shadow, rng: random.Random, sequence: int, first: int, count: int) -> None:
    for token in range(first, first + count):
        for layer, kv in VECTORS:
            request = Request(Op.APPEND, 0, sequence, layer, kv, token=token)
            shadow.send(request, random_records(rng, KV))


def read_all(shadow: Shadow, sequence: int, token: int) -> None:
    for layer, kv in VECTORS:
        shadow.send(Request(Op.READ, 0, sequence, layer, kv, 0, KV.heads, token))


def partial_streams(sequence) -> int:
    """Streams of a sequence whose last page is not full."""
    sizes = [
        sum(len(records[slot]) for records in vector)
        for vector in sequence.vectors.values()
        for slot in range(KV.slots)
    ]
    return sum(size % CACHE.page_bytes != 0 for size in sizes)


@cocotb.test(skip=not CACHE.forks)
@cocotb.parametrize(flow=["calm", "rough", "storm"])
async def children_of_one_prompt(dut, flow):
    """All children share the prompt's pages, whoever goes first, and each goes on alone.

    Shown to fail:

    - a copy to another page, or from another one;
    - a copy of one byte less;
    - NEXT of another stream;
    - a child that is not known, or a status that names its parent;
    - a FORK that ends after its first copy.
    """
    # Calm: the pages of records of one size are full, so children have no page of theirs yet.
    full = CACHE.page_bytes // KV.kind(0).most
    tokens = min(CACHE.max_tokens - 8, full if flow == "calm" else 45)
    host, shadow = await prompt(dut, "prompt", tokens)
    flow = {"calm": CALM, "rough": ROUGH, "storm": STORM}[flow]
    host.stall |= dict.fromkeys(host.stall, flow["stall"]) if flow is not STORM else flow["stall"]
    host.idle |= dict.fromkeys(host.idle, flow["idle"]) if flow is not STORM else flow["idle"]
    host.latency = flow["latency"]
    free, copies = int(dut.free_pages.value), partial_streams(shadow.open[0])
    children = CACHE.sequences - 1
    for n in range(children):
        shadow.send(Request(Op.FORK, n, 0, token=tokens))
    await host.until(lambda: shadow.is_done)
    assert shadow.counts[Op.FORK, Status.OK] == children
    assert int(dut.free_pages.value) == free - children * copies
    for token, sequence, status in (
        (tokens, 0, Status.TABLE_FULL),
        (tokens, 1, Status.BAD_REQUEST),
        (tokens, CACHE.sequences, Status.SEQUENCE_UNKNOWN),
    ):
        shadow.send(Request(Op.FORK, 0, sequence, token=token))
        await host.until(lambda: shadow.is_done)
        assert shadow.results[-1][1] == status
    for sequence in shadow.open:
        append_to(shadow, host.rng, sequence, tokens, 1 + sequence % 3)
    await host.until(lambda: shadow.is_done)
    for sequence in shadow.open:
        read_all(shadow, sequence, tokens + 1)
        if sequence % 2 == 0:
            shadow.send(Request(Op.TRIM, 0, sequence, token=tokens - sequence))
    shadow.send(Request(Op.FREE, 0, 0))
    for sequence in range(1, children + 1):
        read_all(shadow, sequence, tokens + 1)
    await host.until(lambda: shadow.is_done)
    order = host.rng.sample([*shadow.open], len(shadow.open))
    for n, sequence in enumerate(order):
        shadow.send(Request(Op.FREE, 0, sequence))
        if n % 2:
            shadow.send(Request(Op.OPEN))
        for other in order[n + 1 :]:
            read_all(shadow, other, tokens + 1)
        await host.until(lambda: shadow.is_done)
    await free_all(host, shadow)


@cocotb.test(skip=not CACHE.forks)
@cocotb.parametrize(op=[Op.APPEND, Op.READ])
async def a_fork_waits_for_its_parent(dut, op):
    """It begins after the READs and APPENDs of its parent, which wait for it if they come later.

    Requests for others go on.
    """
    tokens = min(CACHE.max_tokens - 8, 10)
    host, shadow = await prompt(dut, "waits", tokens)
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    append_to(shadow, host.rng, 1, 0, 2)
    await host.until(lambda: shadow.is_done)
    port, chances = {Op.APPEND: ("record", host.idle), Op.READ: (CHANNELS[0], host.stall)}[op]
    chances[port] = 1.0
    if op == Op.APPEND:
        append_to(shadow, host.rng, 0, tokens, 1)
        await host.until(lambda: len(shadow.under_way(Op.APPEND)) == min(len(VECTORS), 2))
        tokens += 1
    else:
        read_all(shadow, 0, tokens)
    shadow.send(Request(Op.FORK, 0, 0, token=tokens))
    shadow.send(Request(Op.OPEN))
    if op == Op.APPEND and len(VECTORS) <= config.appends:
        read_all(shadow, 1, 2)
    done, free = len(shadow.results), int(dut.free_pages.value)
    for _ in range(4):
        read_all(shadow, 0, tokens)
    for _ in range(600):
        await host.step()
    results = shadow.results[done:]
    assert not any(request.op == Op.FORK for request, _, _ in results), "a FORK before its turn"
    if len(VECTORS) <= config.appends:
        assert any(request.op == Op.OPEN for request, _, _ in results)
        assert len(shadow.queued) > 2 * len(VECTORS), "a READ of the parent went ahead"
    assert int(dut.free_pages.value) == free
    chances[port] = 0.0
    await host.until(lambda: shadow.is_done)
    assert shadow.counts[Op.FORK, Status.OK] == 1
    await free_all(host, shadow)


@cocotb.test(skip=not CACHE.forks)
async def a_fork_that_fails_changes_nothing(dut):
    """Errors on reads and writes of copies, no page left, other lengths: all is as before.

    Shown to fail:

    - an error of a read that is forgotten;
    - an error of a write that is forgotten, or that stays for the next FORK;
    - pages that go back before the answers;
    - a child that stays.
    """
    tokens = min(CACHE.max_tokens - 8, 10)
    host, shadow = await prompt(dut, "fails", tokens, latency=(30, 60))
    free = int(dut.free_pages.value)

    async def fork(status: Status, token: int) -> None:
        shadow.send(Request(Op.FORK, 0, 0, token=token))
        least = free
        while not shadow.is_done:
            now = int(dut.free_pages.value)
            assert now <= least or not host.writes_under_way, "a page back before its answers"
            least = min(now, least)
            await host.step()
        assert shadow.results[-1][1] == status
        if status:
            assert int(dut.free_pages.value) == free
            read_all(shadow, 0, tokens)
            await host.until(lambda: shadow.is_done)
            return
        child = shadow.results[-1][2]
        assert child == 1, "the number of a child that failed is not vacant"
        read_all(shadow, child, tokens)
        shadow.send(Request(Op.FREE, 0, child))
        await host.until(lambda: shadow.is_done)

    for worst, status in ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR)):
        for is_write in (False, True):
            for which in (0, 1, partial_streams(shadow.open[0]) - 1):
                seen: list[int] = []

                def respond(address, kind, seen=seen, is_write=is_write, which=which, worst=worst):
                    page = address // CACHE.page_bytes
                    if kind == is_write and page not in seen:
                        seen.append(page)
                    is_bad = kind == is_write and page == dict(enumerate(seen)).get(which)
                    return worst if is_bad else 0

                host.respond = respond
                shadow.send(Request(Op.FORK, 0, 0, token=tokens))
                await host.until(lambda: shadow.is_done)
                assert shadow.results[-1][1] == status
                assert int(dut.free_pages.value) == free
                host.respond = lambda address, is_write: 0
                await fork(Status.OK, tokens)
    await fork(Status.BEYOND_LENGTH, tokens + 1)
    await fork(Status.BEYOND_LENGTH, (1 << 21) - 1)
    await fork(Status.TOKEN_ORDER, tokens - 1)
    append_to(shadow, host.rng, 0, tokens, 1)
    await host.until(lambda: shadow.is_done)
    free, tokens = int(dut.free_pages.value), tokens + 1
    await fork(Status.OK, tokens)
    # The rest of the pages for others: all sequences but the parent and one.
    for sequence in range(1, CACHE.sequences - 1):
        shadow.send(Request(Op.OPEN))
        await host.until(lambda: shadow.is_done)
        append_to(shadow, host.rng, sequence, 0, CACHE.max_tokens)
    await host.until(lambda: shadow.is_done)
    free = int(dut.free_pages.value)
    assert free < partial_streams(shadow.open[0]), "choose a configuration with fewer pages"
    await fork(Status.OUT_OF_PAGES, tokens)
    await free_all(host, shadow)


@cocotb.test(skip=not CACHE.forks)
async def copies_and_appends_take_turns(dut):
    """Neither keeps the other from the writer."""
    tokens = min(CACHE.max_tokens - 8, 10)
    host, shadow = await prompt(dut, "turns", tokens, latency=(20, 20))
    shadow.send(Request(Op.OPEN))
    await host.until(lambda: shadow.is_done)
    shadow.send(Request(Op.FORK, 0, 0, token=tokens))
    append_to(shadow, host.rng, 1, 0, tokens)
    await host.until(lambda: shadow.is_done)
    order = [request.op for request, _, _ in shadow.results]
    place = order.index(Op.FORK)
    after = len(order) - 1 - place
    appends = order[:place].count(Op.APPEND) - tokens * len(VECTORS)
    dut._log.info(f"{appends} APPENDs end during a FORK, {after} requests after it")
    assert appends >= partial_streams(shadow.open[0]) // 2, "no APPEND while a FORK copies"
    assert after > len(VECTORS), "the FORK came last"
    await free_all(host, shadow)


@cocotb.test(skip=not CACHE.forks)
async def fork_cycles(dut):
    """A FORK takes no more cycles than its page says, with nothing else in flight."""
    tokens = min(CACHE.max_tokens - 8, 45)
    host, shadow = await prompt(dut, "cycles", tokens, **CALM)
    golden = Mmu(CACHE, config.data_bits)
    golden.request(Request(Op.OPEN))
    for (layer, kv), records in shadow.open[0].vectors.items():
        for token, each in enumerate(records):
            golden.request(Request(Op.APPEND, 0, 0, layer, kv, token=token), each)
    golden.request(Request(Op.FORK, 0, 0, token=tokens))
    streams = [(layer, kv, slot) for layer, kv in VECTORS for slot in range(KV.slots)]
    shared = [
        sum(golden.table.sharers(page) for page in golden.table.chain(0, *stream))
        for stream in streams
    ]
    for latency in (1, 40):
        host.latency = (latency, latency)
        before = len(host.moved["axi__w"])
        shadow.send(Request(Op.FORK, 0, 0, token=tokens))
        await host.until(lambda: shadow.is_done)
        took = host.moved["status"][-1] - host.moved["request"][-1]
        words, pages = len(host.moved["axi__w"]) - before, partial_streams(shadow.open[0])
        most = mmu_fork_cycles(shared, pages, words, latency)
        dut._log.info(f"FORK: {took} of {most} cycles, {words} words of {pages} pages")
        assert took <= most
    await free_all(host, shadow)


@cocotb.test()
async def reset_in_mid_traffic(dut):
    """After a reset nothing is left: no sequence, no page, no word, no status."""
    host = await start(dut, "cut", **ROUGH)
    for attempt in range(4):
        shadow = Shadow(host)
        requests = Requests(host.rng, shadow)
        await host.until(lambda: bool(dut.request__ready.value))
        end = host.cycle + host.rng.randrange(300, 3000)
        while host.cycle < end:
            requests.step()
            await host.step()
        name = f"cut {attempt}"
        host = Host(dut, config, name=name, base=base_of(name, config), **ROUGH)
        await host.reset(1, start_clock=False)
    shadow = Shadow(host)
    await run_requests(host, shadow, Requests(host.rng, shadow), params["requests"] // 6)
    await free_all(host, shadow)


@cocotb.test()
async def ready_when_the_tables_stand(dut):
    """After reset no request is taken until the page table is written."""
    host = await start(dut, "late")
    host.send(Request(Op.OPEN))
    await host.until(lambda: host.moved["request"])
    assert host.moved["request"][0] >= CACHE.pages - 3
