"""A host, a memory and a model of what the MMU may answer, inside the simulator.

The memory is as unkind as AXI allows. A read burst sees the bytes of the cycle of its AR. It sees
written bytes only once B has been taken.
"""

import dataclasses
import random
from collections import defaultdict, deque
from collections.abc import Callable

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import PAGE_BYTES as AXI_BOUNDARY
from golden.paging.format import Op, Status
from golden.paging.mmu import Request, Word, joined
from golden.words import layout_word
from hdl.paging.layouts import REQUEST_LAYOUT, STATUS_LAYOUT
from tb.bench import LIVELOCK, SILENCE, config
from tb.simulate.ports import stream_port

_KV = config.cache.kv
OUTLETS = config.reader.outlets
CHANNELS = tuple(each.name for each in OUTLETS)
# One transfer per READ; the others: per head
ONCE = tuple(each.name for each in OUTLETS if each.kind in _KV.per_vector)
SOURCES = ("request", "record", "w", "axi__r", "axi__b")
SINKS = ("status", "info", *CHANNELS, "axi__ar", "axi__aw", "axi__w")
_KNOWN = {Op.OPEN, Op.APPEND, Op.READ, Op.TRIM, Op.FREE} | (
    {Op.FORK} if config.cache.forks else set()
)
_GOES_AHEAD = {Status.OK, Status.SLAVE_ERROR, Status.DECODE_ERROR}


def _word(layout, fields: dict[str, int]) -> int:
    return layout_word(layout, **fields)


def transfers_of(request: Request) -> dict[str, int]:
    """Transfers of a READ on each channel."""
    return {
        each.name: (1 if each.name in ONCE else request.heads) * (each.kv in (None, request.kv))
        for each in OUTLETS
    }


def random_records(rng: random.Random, kv, share: float = 0.3) -> list[bytes]:
    """Records of one token; ``share`` of what a record of variable size may have beyond least."""
    records = []
    for slot in range(kv.slots):
        kind = kv.kind(slot)
        size = kind.most
        if not kind.is_fixed:
            most = kind.most - kind.least
            count = sum(rng.random() < share for _ in range(most))
            if rng.random() < 0.05:
                count = rng.choice([0, most])
            size = kind.least + count
        records.append(rng.randbytes(size))
    return records


class Host:
    """Drives every port of the MMU, a cycle per ``step``; ``events`` reports each transfer.

    idle, stall: chance per cycle of each source or sink, by name or for all. latency: least
    and most cycles from AR to the first beat and from a write burst's end to B. respond: as
    golden.paging.mmu.Mmu's. events: name of a port -> called with its payload's fields.
    """

    def __init__(
        self,
        dut,
        config,
        *,
        name: str = "host",
        base: int = 0,
        idle=0.0,
        stall=0.0,
        latency: tuple[int, int] = (1, 1),
        respond: Callable[[int, bool], int] = lambda address, is_write: 0,
    ):
        self.dut, self.config, self.base, self.respond = dut, config, base, respond
        self.latency = latency
        self.idle = idle if isinstance(idle, dict) else dict.fromkeys(SOURCES, idle)
        self.stall = stall if isinstance(stall, dict) else dict.fromkeys(SINKS, stall)
        self.rng = random.Random(f"{cocotb.RANDOM_SEED} {name}")
        self.word_bytes = config.data_bits // 8
        axi = config.axi_signature.members
        channels = {name: axi[name].signature.members["payload"].shape for name in axi}
        self.layouts = {
            "request": REQUEST_LAYOUT,
            "record": config.record_layout,
            "w": config.w_layout,
            "status": STATUS_LAYOUT,
            "info": config.info_layout,
            **dict.fromkeys(CHANNELS, config.word_layout),
            **{f"axi__{name}": shape for name, shape in channels.items()},
        }
        # By port: (name, offset, mask) of each field, which Amaranth computes anew at each use.
        self._fields = {
            name: [(each, field.offset, (1 << field.width) - 1) for each, field in layout]
            for name, layout in self.layouts.items()
        }
        self._port = {name: stream_port(dut, name) for name in (*SOURCES, *SINKS)}
        self._shown: dict[str, int] = dict.fromkeys(SOURCES, -1)  # what valid was driven to
        self.queues: dict[str, deque] = {name: deque() for name in SOURCES}
        self._offered: dict[str, int | None] = dict.fromkeys(SOURCES)
        self._held: dict[str, int | None] = dict.fromkeys(SINKS)
        self._ready: dict[str, int] = dict.fromkeys(SINKS, -1)
        self.events: dict[str, Callable[[dict[str, int]], None]] = {}
        self._settled, self._falling = ReadOnly(), FallingEdge(dut.clk)
        self.cycle = 0
        self.moved: dict[str, list[int]] = defaultdict(list)  # cycles of transfers
        self._last_moved = 0
        size = config.cache.pages * config.cache.page_bytes
        self.memory = bytearray(size)
        self._bursts: deque[tuple[int, int]] = deque()
        self._beats: list[dict[str, int]] = []  # whose AW has not come
        self._writes: deque[list[tuple[int, dict[str, int]]]] = deque()  # whose B is not taken
        self.failed_writes: list[tuple[bytes, int]] = []  # data and response of each; Shadow's
        self.failures = 0  # responses that are errors
        self.written: Callable[[int], None] = lambda page: None  # hears of each burst's page

    async def reset(self, cycles: int = 3, start_clock: bool = True) -> None:
        """Reset with junk on every input."""
        dut = self.dut
        if start_clock:
            Clock(dut.clk, 10, "ns").start(start_high=False)
            await FallingEdge(dut.clk)
        dut.rst.value = 1
        dut.base.value = self.base
        for _ in range(cycles):
            for name in SOURCES:
                payload, valid, _ = self._port[name]
                payload.value = self.rng.getrandbits(len(payload))
                valid.value = self.rng.getrandbits(1)
            for name in SINKS:
                self._port[name][2].value = self.rng.getrandbits(1)
            await FallingEdge(dut.clk)
        for name in SOURCES:
            self._port[name][1].value = 0
            self._shown[name] = 0
        for name in SINKS:
            self._port[name][2].value = 0
        dut.rst.value = 0

    def send(self, request: Request, records=()) -> None:
        """Queue a request, and the records of an APPEND."""
        self.queues["request"].append(_word(REQUEST_LAYOUT, request._asdict()))
        size = self.word_bytes
        for record in records:
            self.queues["record"].append(len(record))
            for at in range(0, len(record), size):
                data = int.from_bytes(record[at : at + size], "little")
                last = at + size >= len(record)
                word = _word(self.layouts["w"], {"data": data, "last": last})
                self.queues["w"].append(word)

    @property
    def writes_under_way(self) -> int:
        """Bursts, whole or in part, whose B was not taken."""
        return len(self._bursts) + len(self._beats) + len(self._writes)

    async def until(self, condition) -> None:
        begin = self.cycle
        while not condition():
            assert self.cycle - begin < LIVELOCK, f"never true: {self.progress()}"
            await self.step()

    def progress(self) -> dict[str, int]:
        return {name: len(cycles) for name, cycles in self.moved.items()} | {
            f"{name} queued": len(queue) for name, queue in self.queues.items()
        }

    async def step(self) -> None:
        """One cycle; AssertionError if no stream has moved a word for SILENCE cycles: a hang."""
        rng, offered, held, ports = self.rng, self._offered, self._held, self._port
        silent = self.cycle - self._last_moved
        assert silent <= SILENCE, f"nothing moves for {silent} cycles: {self.progress()}"
        for name in SOURCES:
            if offered[name] is not None:
                continue
            payload, valid, _ = ports[name]
            queue, idle, word = self.queues[name], self.idle.get(name, 0.0), None
            if queue and (not idle or rng.random() >= idle):
                word = queue[0]
                if name in ("axi__r", "axi__b"):
                    due, word = word
                    if due > self.cycle:
                        word = None
                if word is not None:
                    queue.popleft()
                    offered[name] = word
                    payload.put(word)
            elif idle:
                payload.put(rng.getrandbits(payload.width))
            if self._shown[name] != (word is not None):
                self._shown[name] = int(word is not None)
                valid.put(self._shown[name])
        for name in SINKS:
            stall = self.stall.get(name, 0.0)
            ready = int(not stall or rng.random() >= stall)
            if ready != self._ready[name]:
                self._ready[name] = ready
                ports[name][2].put(ready)
        await self._settled
        taken = []
        for name in SOURCES:
            word = offered[name]
            if word is not None and ports[name][2].get():
                offered[name] = None
                taken.append((name, word))
        for name in SINKS:
            payload, valid, _ = ports[name]
            if valid.get():
                word = payload.get()
                assert held[name] is None or held[name] == word, (
                    f"{name} changed before its transfer"
                )
                held[name] = word
                if self._ready[name]:
                    held[name] = None
                    taken.append((name, word))
            else:
                assert held[name] is None, f"{name}: valid fell before the transfer"
        await self._falling
        for name, word in taken:
            self.moved[name].append(self.cycle)
            self._last_moved = self.cycle
            fields = {each: word >> offset & mask for each, offset, mask in self._fields[name]}
            if name.startswith("axi__"):
                getattr(self, f"_{name[5:]}")(fields)
            elif name in self.events:
                self.events[name](fields)
        self.cycle += 1

    # The memory.

    def _check(self, request: dict[str, int]) -> tuple[int, int]:
        """(offset from base, beats)."""
        beats, size = request["len"] + 1, self.word_bytes
        assert 1 << request["size"] == size
        assert request["burst"] == 1
        assert beats <= self.config.burst_beats
        assert request["addr"] % size == 0
        assert request["addr"] % AXI_BOUNDARY + beats * size <= AXI_BOUNDARY, "4 KiB crossed"
        start = request["addr"] - self.base
        assert 0 <= start <= len(self.memory) - beats * size, "outside of the pages"
        page = self.config.cache.page_bytes
        assert start // page == (start + beats * size - 1) // page, "burst over two pages"
        return start, beats

    def _due(self) -> int:
        return self.cycle + self.rng.randint(*self.latency)

    def _ar(self, request) -> None:
        start, beats = self._check(request)
        due = self._due()
        for n in range(beats):
            at = start + n * self.word_bytes
            data = int.from_bytes(self.memory[at : at + self.word_bytes], "little")
            beat = {"data": data, "resp": self.respond(at, False), "last": n == beats - 1}
            self.failures += beat["resp"] != 0
            self.queues["axi__r"].append((due, _word(self.layouts["axi__r"], beat)))

    def _aw(self, request) -> None:
        self._bursts.append(self._check(request))
        self.written(self._bursts[-1][0] // self.config.cache.page_bytes)
        self._match()

    def _w(self, beat) -> None:
        self._beats.append(beat)
        self._match()

    def _match(self) -> None:
        while self._bursts and len(self._beats) >= self._bursts[0][1]:
            start, count = self._bursts.popleft()
            beats, self._beats = self._beats[:count], self._beats[count:]
            assert [beat["last"] for beat in beats] == [0] * (count - 1) + [1], "WLAST"
            places = [start + n * self.word_bytes for n in range(count)]
            self._writes.append(list(zip(places, beats, strict=True)))
            resp = max(self.respond(at, True) for at in places)
            self.failures += resp != 0
            self.queues["axi__b"].append(
                (self._due(), _word(self.layouts["axi__b"], {"resp": resp}))
            )

    def _r(self, _beat) -> None:
        pass

    def _b(self, answer) -> None:
        written = bytearray()
        for at, beat in self._writes.popleft():
            for k in range(self.word_bytes):
                if beat["strb"] >> k & 1:
                    self.memory[at + k] = beat["data"] >> 8 * k & 0xFF
                    written.append(self.memory[at + k])
        if answer["resp"]:
            self.failed_writes.append((bytes(written), answer["resp"]))


@dataclasses.dataclass(eq=False)
class Sequence:
    """The content of a sequence: per vector the records of its tokens."""

    start: int = 0
    vectors: dict[tuple[int, int], list[list[bytes]]] = dataclasses.field(
        default_factory=lambda: defaultdict(list)
    )
    is_child: bool = False  # made by FORK

    def child(self) -> "Sequence":
        vectors = {vector: list(records) for vector, records in self.vectors.items()}
        return Sequence(self.start, defaultdict(list, vectors), is_child=True)


@dataclasses.dataclass(eq=False)
class Pending:
    """A request that was taken and has no status yet."""

    request: Request
    sequence: Sequence | None  # the one that it names, where it was open
    records: list[bytes]
    committed: int = 0  # tokens of its vector when it was taken
    failures: int = 0  # of the host, when it was taken


@dataclasses.dataclass(eq=False)
class PendingRead:
    """A READ with a status whose words are still to be compared."""

    request: Request
    records: list[list[bytes]]  # of the vector, all tokens
    start: int
    least: int  # tokens that its transfers of variable size have at least and at most
    most: int
    status: Status


_RESULTS = {0: Status.OK, 2: Status.SLAVE_ERROR, 3: Status.DECODE_ERROR}


def _is_of(failed: tuple[bytes, int], pending: Pending) -> bool:
    """Whether the bytes of a failed write may be of the records of ``pending``."""
    return any(failed[0] in record for record in pending.records)


class Shadow:
    """Checks every status and every word, in whatever order the MMU may give them.

    It follows the MMU where several answers are right (whether pages are left) and insists on
    one everywhere else.
    """

    def __init__(self, host: Host):
        self.host, self.config = host, host.config
        host.failed_writes = []
        self.cache, self.kv = host.config.cache, host.config.cache.kv
        self.open: dict[int, Sequence] = {}
        self.closing: list[int] = []  # FREEs without a status
        self.queued: deque[tuple[Request, list[bytes]]] = deque()  # sent, not taken
        self.waiting: dict[int, deque[Pending]] = defaultdict(deque)  # by op
        self.counts: dict[tuple[int, Status], int] = defaultdict(int)
        self.read: deque[PendingRead] = deque()
        self.got: dict[str, deque] = {name: deque() for name in ("info", *CHANNELS)}
        self.results: list[tuple[Request, Status, int]] = []
        host.events["request"] = lambda fields: self._taken(Request(**fields))
        host.events["status"] = self._status
        host.events["info"] = self.got["info"].append
        for name in CHANNELS:
            host.events[name] = lambda fields, name=name: self.got[name].append(Word(**fields))

    def send(self, request: Request, records=()) -> None:
        self.queued.append((request, list(records)))
        self.host.send(request, records)

    @property
    def is_done(self) -> bool:
        """Every request has its status, and every READ its words."""
        self.compare()
        is_waiting = any(self.waiting.values()) or self.queued or self.read
        return not is_waiting and not any(self.got.values())

    def under_way(self, op: int, sequence=None, vector=None) -> list[Pending]:
        return [
            each
            for each in self.waiting[op]
            if sequence in (None, each.sequence)
            and vector in (None, (each.request.layer, each.request.kv))
        ]

    def _taken(self, request: Request) -> None:
        sent, records = self.queued.popleft()
        assert request == sent
        sequence = self.open.get(request.sequence)
        pending = Pending(request, sequence, records, failures=self.host.failures)
        if sequence is not None:
            pending.committed = len(sequence.vectors.get((request.layer, request.kv), ()))
        op = request.op if request.op in _KNOWN else -1
        if op == Op.FREE and sequence is not None:
            del self.open[request.sequence]
            self.closing.append(request.sequence)
        self.waiting[op].append(pending)

    def _status(self, fields: dict[str, int]) -> None:
        op = fields["op"] if fields["op"] in _KNOWN else -1
        assert self.waiting[op], f"a status that nobody waits for: {fields}"
        pending = self.waiting[op].popleft()
        request, status = pending.request, Status(fields["status"])
        assert (fields["tag"], fields["op"]) == (request.tag, request.op)
        if op == Op.FORK:  # before it leaves those under way: its copies are answered
            self.waiting[op].appendleft(pending)
            host = self.host
            host.failed_writes = [each for each in host.failed_writes if not self._is_copy(each)]
            self.waiting[op].popleft()
        self.counts[op, status] += 1
        self.results.append((request, status, fields["sequence"]))
        if op == Op.OPEN:
            self._opened(status, fields["sequence"])
            return
        allowed = self._allowed(op, pending)
        assert status in allowed, f"{request}: {status!r}, not {allowed}"
        if op == Op.FORK and status == Status.OK:
            self._begun(fields["sequence"], pending.sequence.child())
        else:
            assert fields["sequence"] == request.sequence
        if op == Op.APPEND:
            self._forget_writes(pending, status)
        if op == Op.FREE and status == Status.OK:
            self.closing.remove(request.sequence)
        elif op == Op.TRIM and status == Status.OK:
            pending.sequence.start = max(pending.sequence.start, request.token)
        elif op == Op.APPEND and status == Status.OK:
            pending.sequence.vectors[request.layer, request.kv].append(pending.records)
        elif op == Op.READ and status in _GOES_AHEAD:
            self._reads(pending, status)

    def _opened(self, status: Status, number: int) -> None:
        count = self.cache.sequences
        if status == Status.TABLE_FULL:
            used = len(self.open) + len(self.closing)
            assert used <= count <= used + len(self.waiting[Op.FORK])
            assert number == 0
            return
        assert status == Status.OK
        self._begun(number, Sequence())

    def _begun(self, number: int, sequence: Sequence) -> None:
        assert number < self.cache.sequences
        assert number not in self.open, "an open sequence is opened"
        self.open[number] = sequence

    def _allowed(self, op: int, pending: Pending) -> set[Status]:
        request, sequence = pending.request, pending.sequence
        if op == -1:
            return {Status.BAD_REQUEST}
        if op in (Op.APPEND, Op.READ):
            bad = request.layer >= self.cache.layers
            if op == Op.READ:
                bad |= not request.heads or request.head + request.heads > self.kv.heads
            if bad:
                return {Status.BAD_REQUEST}
        if sequence is None:
            return {Status.SEQUENCE_UNKNOWN}
        if op == Op.FREE:
            return {Status.OK}
        lengths = [
            len(sequence.vectors.get((layer, kv), ()))
            for layer in range(self.cache.layers)
            for kv in range(2)
        ]
        if op == Op.FORK:
            return self._fork_statuses(pending, lengths)
        if op == Op.TRIM:
            is_beyond = min(lengths) < request.token
            return {Status.BEYOND_LENGTH if is_beyond else Status.OK}
        tokens = len(sequence.vectors[request.layer, request.kv])
        if op == Op.READ:
            return self._read_statuses(pending, tokens)
        if request.token != tokens:
            return {Status.TOKEN_ORDER}
        if tokens == self.cache.max_tokens:
            return {Status.LENGTH_LIMIT}
        is_sized = all(
            self.kv.kind(slot).least <= len(record) <= self.kv.kind(slot).most
            for slot, record in enumerate(pending.records)
        )
        if not is_sized:
            return {Status.VECTOR_LENGTH, Status.OUT_OF_PAGES}
        return self._append_results(pending) | {Status.OUT_OF_PAGES}

    def _fork_statuses(self, pending: Pending, lengths: list[int]) -> set[Status]:
        token = pending.request.token
        if pending.sequence.is_child:
            return {Status.BAD_REQUEST}
        used = len(self.open) + len(self.closing) + len(self.waiting[Op.OPEN])
        if used >= self.cache.sequences:
            full = {Status.TABLE_FULL}
            if len(self.open) + len(self.closing) == self.cache.sequences:
                return full
        else:
            full = set()
        if token > self.cache.max_tokens:
            return full | {Status.BEYOND_LENGTH}
        if wrong := [length for length in lengths if length != token]:
            order = Status.BEYOND_LENGTH if wrong[0] < token else Status.TOKEN_ORDER
            return full | {order, Status.OUT_OF_PAGES}
        errors = _GOES_AHEAD if self.host.failures > pending.failures else {Status.OK}
        return full | errors | {Status.OUT_OF_PAGES}

    def _is_copy(self, failed: tuple[bytes, int]) -> bool:
        """Whether the bytes of a failed write may be those that a FORK under way copies."""
        forks = [each.sequence for each in self.waiting[Op.FORK] if each.sequence]
        streams = (
            b"".join(records[slot] for records in vector)
            for sequence in forks
            for vector in sequence.vectors.values()
            for slot in range(self.kv.slots)
        )
        return any(failed[0] in stream for stream in streams)

    def _append_results(self, pending: Pending) -> set[Status]:
        """The statuses that the responses to the writes of ``pending`` may give it.

        A status may wait while the writes of the next APPEND are answered. So the data of a failed
        write says whose it is. Where few bytes fit a later APPEND too, several results are right.
        """
        waiting = self.waiting[Op.APPEND]
        ours = [each for each in self.host.failed_writes if _is_of(each, pending)]
        unsure = [
            each
            for each in ours
            if any(_is_of(each, other) for other in waiting) or self._is_copy(each)
        ]
        worst = max((resp for data, resp in ours if (data, resp) not in unsure), default=0)
        return {_RESULTS[max(worst, resp)] for resp in (0, *(resp for _, resp in unsure))}

    def _forget_writes(self, pending: Pending, status: Status) -> None:
        """Take the failed writes of ``pending``, which has its status, off the list.

        A failed write that fits no other APPEND is to be one of those.
        """
        waiting, left = self.waiting[Op.APPEND], []
        for failed in self.host.failed_writes:
            is_later = any(_is_of(failed, other) for other in waiting) or self._is_copy(failed)
            if _is_of(failed, pending) and not (is_later and status == Status.OK):
                continue
            assert is_later, f"{pending.request}: a write of {failed[0].hex()} failed unseen"
            left.append(failed)
        self.host.failed_writes = left

    def _read_statuses(self, pending: Pending, tokens: int) -> set[Status]:
        request = pending.request
        vector = request.layer, request.kv
        most = tokens + len(self.under_way(Op.APPEND, pending.sequence, vector))
        allowed = set()
        if request.token > pending.committed:
            allowed.add(Status.BEYOND_LENGTH)
        if request.token <= most:
            if request.token <= pending.sequence.start:
                allowed.add(Status.EMPTY)
            else:
                allowed |= _GOES_AHEAD
        return allowed

    def _reads(self, pending: Pending, status: Status) -> None:
        request, sequence = pending.request, pending.sequence
        vector = request.layer, request.kv
        records = sequence.vectors[vector]
        later = [each.records for each in self.under_way(Op.APPEND, sequence, vector)]
        self.read.append(
            PendingRead(
                request,
                records + later,
                sequence.start,
                max(pending.committed, request.token),
                len(records) + len(later),
                status,
            )
        )
        for name in CHANNELS:
            ends = sum(transfers_of(read.request)[name] for read in self.read)
            taken = sum(word.last for word in self.got[name])
            assert taken >= ends, f"{request}: a status before the last word of {name}"

    def compare(self) -> None:
        """Compare the words of all READs that have everything."""
        got = self.got
        while self.read:
            heads = self.read[0].request.heads
            if len(got["info"]) < heads:
                return
            wanted = transfers_of(self.read[0].request)
            if any(sum(word.last for word in got[name]) < wanted[name] for name in CHANNELS):
                return
            self._compare(self.read.popleft())

    def _transfer(self, name: str) -> tuple[bytes, int]:
        """(bytes, worst response) of the next transfer."""
        size, words = self.host.word_bytes, []
        while not words or not words[-1].last:
            words.append(self.got[name].popleft())
        for n, word in enumerate(words):
            assert word.end == size or word.last
            assert not word.first or not n
            assert word.first < word.end <= size
            assert not n or word.error >= words[n - 1].error
        return joined(words, size), words[-1].error

    def _compare(self, read: PendingRead) -> None:
        request, kv = read.request, self.kv
        wanted = read.records[read.start : request.token]
        infos = [self.got["info"].popleft() for _ in range(request.heads)]
        outlets = [each for each in OUTLETS if each.kv in (None, request.kv)]
        once = [each for each in outlets if each.name in ONCE]
        errors = [self._records(read, each, 0, infos[0]) for each in once]
        for n, info in enumerate(infos):
            head = request.head + n
            assert info == {
                "tag": request.tag,
                "head": head,
                "tokens": len(wanted),
                **{field: info[field] for field in kv.skips.values()},
                "first": int(n == 0),
                "last": int(n == request.heads - 1),
            }
            for kind in kv.per_vector:  # one transfer, so one skip
                assert all(info[f] == infos[0][f] for k, f in kv.skips.items() if k == kind.name)
            errors += [
                self._records(read, each, head, info) for each in outlets if each not in once
            ]
        found = _RESULTS[max(errors)]
        assert read.status == found, f"{request}: {read.status!r} with responses {errors}"
        assert kv.slots == len(read.records[0])

    def _records(self, read: PendingRead, outlet, head: int, info: dict[str, int]) -> int:
        """Compare the next transfer of a channel; its worst response."""
        name = outlet.kind.name
        slot = self.kv.slot(name, head)
        found, error = self._transfer(outlet.name)
        if name not in self.kv.skips:
            wanted = read.records[read.start : read.request.token]
            assert found == b"".join(token[slot] for token in wanted), f"{read.request}: {name}"
            return error
        skip = info[self.kv.skips[name]]
        assert skip <= read.start
        given = read.records[read.start - skip :]
        lengths = [len(token[slot]) for token in given]
        least = read.least - read.start + skip
        most = read.most - read.start + skip
        allowed = [sum(lengths[:count]) for count in range(least, most + 1)]
        assert len(found) in allowed, f"{read.request}: {len(found)} bytes of {name}, not {allowed}"
        whole = b"".join(token[slot] for token in given)
        assert found == whole[: len(found)], f"{read.request}: {name}"
        return error
