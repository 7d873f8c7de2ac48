"""The accelerator's host and memories inside the simulator, all in one loop per cycle.

The host writes command words to COMMAND over AXI4-Lite and polls STATUS and READBACK. At times it
reads CONTROL, whose ``idle`` is that of the port. Each read port has a memory of its own. It
answers bursts in order after a latency, with random stalls and error responses at chosen words. So
has the port of the pages, which is written too. Payloads have random bits where nothing is valid.
"""

import collections
import dataclasses

from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from golden.axi.format import CACHE_REGISTERS, PAGE_BYTES, REGISTERS, RESP_DECERR, RESP_OKAY
from golden.kllm.isa import COMMAND_WORDS
from tb.bench import SILENCE, Bench, Watch
from tb.simulate.ports import stream_port

_COMMAND = REGISTERS["COMMAND"].offset
_CONTROL = REGISTERS["CONTROL"].offset
_POLLED = (
    REGISTERS["STATUS"].offset,
    REGISTERS["READBACK"].offset,
    CACHE_REGISTERS["ANSWER"].offset,
    CACHE_REGISTERS["RESULT"].offset,
)
REQUEST, BATCH, RUN = (CACHE_REGISTERS[name].offset for name in ("REQUEST", "BATCH", "RUN"))
_RESULT = _POLLED.index(CACHE_REGISTERS["RESULT"].offset)
_IDLE = 0.1  # chance that a host that waits at times looks at CONTROL
_REQUESTS = 8  # of the host without an answer, with four words each


@dataclasses.dataclass(frozen=True)
class Report:
    """One status as the host took it."""

    tag: int
    unit: int
    status: int
    cycle: int


class Memory:
    """The subordinate of one AXI4 read port.

    data: its bytes. A read beyond them gives DECERR. A read of a word address in ``errors`` gives
    the response that ``errors`` stores for it. delay: cycles of this memory, added to a run's
    latency.
    """

    def __init__(self, dut, name, id_bits, address_bits, data_bits, data=b"", errors=None):
        self.name, self.address_bits, self.word_bytes = name, address_bits, data_bits // 8
        self.id_bits, self.data_bits = id_bits, data_bits
        self.data, self.errors = bytearray(data), dict(errors or {})
        self.delay = 0
        self.ar, self.r = stream_port(dut, f"{name}__ar"), stream_port(dut, f"{name}__r")
        self.bursts = collections.deque()  # [first cycle, address, words left, id]
        self.offered = self.ready = self.was_valid = False
        self.words = 0

    def restart(self) -> None:
        self.bursts.clear()
        self.offered = self.ready = self.was_valid = False
        self.r[1].value = 0
        self.ar[2].value = 0

    def drive(self, cycle, rng, p_stall) -> None:
        ready = not p_stall or rng.random() >= p_stall
        if ready != self.ready:
            self.ready = ready
            self.ar[2].value = ready
        if self.offered:
            return
        if self.bursts and self.bursts[0][0] <= cycle and (not p_stall or rng.random() >= p_stall):
            _, address, left, ident = self.bursts[0]
            word = int.from_bytes(self.data[address : address + self.word_bytes], "little")
            resp = self.errors.get(address // self.word_bytes, RESP_OKAY)
            if address + self.word_bytes > len(self.data):
                resp = RESP_DECERR
            if resp != RESP_OKAY:
                word = rng.getrandbits(self.data_bits)
            at = self.id_bits + self.data_bits
            self.r[0].value = ident | word << self.id_bits | resp << at | int(left == 1) << at + 2
            self.r[1].value = 1
            self.offered = self.was_valid = True
        elif self.was_valid:
            self.was_valid = False
            self.r[1].value = 0
            self.r[0].value = rng.getrandbits(self.id_bits + self.data_bits + 3)

    def sample(self, cycle, latency) -> bool:
        """Whether a burst or a word was transferred."""
        moved = False
        if self.ready and self.ar[1].value:
            moved = True
            payload = int(self.ar[0].value)
            ident = payload & ((1 << self.id_bits) - 1)
            payload >>= self.id_bits
            address = payload & ((1 << self.address_bits) - 1)
            words = (payload >> self.address_bits & 0xFF) + 1
            end = address + words * self.word_bytes - 1
            assert address // PAGE_BYTES == end // PAGE_BYTES, f"{self.name}: crosses 4 KiB"
            self.bursts.append([cycle + latency + self.delay, address, words, ident])
        if self.offered and self.r[2].value:
            moved = True
            self.offered = False
            self.words += 1
            burst = self.bursts[0]
            burst[1] += self.word_bytes
            burst[2] -= 1
            if not burst[2]:
                self.bursts.popleft()
        return moved


class Pages(Memory):
    """The subordinate of the port of the pages: reads and writes.

    response: of every access from now on; a write that is refused changes nothing. It begins with
    junk. AssertionError: an access beyond its bytes, or a burst that crosses 4 KiB.
    """

    def __init__(self, dut, name, id_bits, address_bits, data_bits, size, rng):
        super().__init__(dut, name, id_bits, address_bits, data_bits, rng.randbytes(size))
        self.aw, self.w, self.b = (stream_port(dut, f"{name}__{each}") for each in ("aw", "w", "b"))
        self.response = RESP_OKAY
        self._stop()

    def _stop(self) -> None:
        self.writes = collections.deque()  # [address, words left, id]
        self.beats = collections.deque()  # (word, strobes)
        self.answers = collections.deque()  # (first cycle, id, response)
        self.takes = {"aw": False, "w": False}
        self.b_offered = False

    def restart(self) -> None:
        super().restart()
        self._stop()
        for port in (self.aw, self.w):
            port[2].value = 0
        self.b[1].value = 0

    def _refused(self, address: int) -> int:
        assert address + self.word_bytes <= len(self.data), f"{self.name}: {address:#x}"
        return self.response

    def drive(self, cycle, rng, p_stall) -> None:
        if self.bursts:
            address = self.bursts[0][1]
            refused = self._refused(address)
            self.errors = {address // self.word_bytes: refused} if refused else {}
        super().drive(cycle, rng, p_stall)
        for name, port in (("aw", self.aw), ("w", self.w)):
            self.takes[name] = not p_stall or rng.random() >= p_stall
            port[2].value = self.takes[name]
        if self.b_offered:
            return
        is_due = bool(self.answers) and self.answers[0][0] <= cycle
        self.b_offered = is_due and (not p_stall or rng.random() >= p_stall)
        self.b[1].value = self.b_offered
        if self.b_offered:
            _, ident, response = self.answers[0]
            self.b[0].value = ident | response << self.id_bits
        else:
            self.b[0].value = rng.getrandbits(self.id_bits + 2)

    def sample(self, cycle, latency) -> bool:
        moved = super().sample(cycle, latency)
        if self.takes["aw"] and self.aw[1].value:
            moved = True
            payload = int(self.aw[0].value)
            ident, payload = payload & (1 << self.id_bits) - 1, payload >> self.id_bits
            address = payload & (1 << self.address_bits) - 1
            words = (payload >> self.address_bits & 0xFF) + 1
            end = address + words * self.word_bytes - 1
            assert address // PAGE_BYTES == end // PAGE_BYTES, f"{self.name}: crosses 4 KiB"
            self.writes.append([address, words, ident, RESP_OKAY])
        if self.takes["w"] and self.w[1].value:
            moved = True
            payload = int(self.w[0].value)
            self.beats.append((payload, payload >> self.data_bits))
        while self.writes and self.beats:
            self._write(cycle + latency)
        if self.b_offered and self.b[2].value:
            moved = True
            self.answers.popleft()
            self.b_offered = False
        return moved

    def _write(self, due: int) -> None:
        burst = self.writes[0]
        word, strobes = self.beats.popleft()
        refused = self._refused(burst[0])
        burst[3] = max(burst[3], refused)
        for n in range(self.word_bytes):
            if strobes >> n & 1 and not refused:
                self.data[burst[0] + n] = word >> 8 * n & 0xFF
        burst[0] += self.word_bytes
        burst[1] -= 1
        assert (strobes >> self.word_bytes & 1) == (burst[1] == 0), f"{self.name}: last of w"
        if not burst[1]:
            self.answers.append((due, burst[2], burst[3]))
            self.writes.popleft()


class Host:
    """Runs programs on ``dut``: sends words, takes statuses and read-back words."""

    def __init__(self, dut, config):
        self.dut, self.config = dut, config
        self._bench = Bench(dut, sources=(), sinks=())
        self._axil = {
            channel: stream_port(dut, f"host__{channel}")
            for channel in ("aw", "w", "b", "ar", "r")
        }
        id_bits = 1
        self.weights = [
            Memory(dut, f"weights_{n}", id_bits, config.address_bits, config.machine.ports.bits)
            for n in range(config.machine.ports.ports)
        ]
        self.data = Memory(dut, "data", id_bits, config.address_bits, 256)
        self.memories = [*self.weights, self.data]
        self.pages = []  # of each engine of the cache
        if config.machine.batch:
            cache, engines = config.machine.cache, config.machine.engines
            self.pages = [
                Pages(
                    dut, name, id_bits, config.address_bits, config.cache.data_bits,
                    cache.pages * cache.page_bytes, self._bench.rng(name),
                )
                for name in (["kv"] if engines == 1 else [f"kv_{n}" for n in range(engines)])
            ]  # fmt: skip
            self.memories += self.pages
        self.cycle = 0
        self._state()

    def _state(self) -> None:
        self._aw = self._w = self._b = False  # offered; an answer is due
        self._ar = self._r = False
        self._polled, self._asks_idle = 0, False
        self._was_idle = False  # in the cycle before

    async def reset(self, cycles: int = 3) -> None:
        if not self._bench._running:
            Clock(self.dut.clk, 10, "ns").start(start_high=False)
            self._bench._running = True
            await FallingEdge(self.dut.clk)
        self.dut.rst.value = 1
        for channel in ("aw", "w", "ar"):
            self._axil[channel][1].value = 0
        for channel in ("b", "r"):
            self._axil[channel][2].value = 0
        for memory in self.memories:
            memory.restart()
        for _ in range(cycles):
            await FallingEdge(self.dut.clk)
        self.dut.rst.value = 0
        self._state()

    async def look(self, offset) -> tuple[int, int]:
        """The word of a register, and the cycle of the answer; nothing is under way."""
        (address, valid, ready), (payload, answered, takes) = self._axil["ar"], self._axil["r"]
        address.value, valid.value, takes.value = offset, 1, 1
        while True:
            await ReadOnly()
            taken, found = bool(ready.value), int(payload.value) if answered.value else None
            await FallingEdge(self.dut.clk)
            self.cycle += 1
            valid.value = bool(valid.value) and not taken
            if found is not None:
                assert found >> 32 & 3 == RESP_OKAY, f"register {offset:#x}"
                return found & 0xFFFFFFFF, self.cycle

    async def request(self, requests, **options) -> list[int]:
        """The answers to requests of four words each, a few at a time."""
        found: list[int] = []
        for first in range(0, len(requests), _REQUESTS):
            some = requests[first : first + _REQUESTS]
            words = [word for each in some for word in each]
            await self.run(words, to=REQUEST, answers=len(some), **options)
            found += self.answers
        return found

    async def run(
        self,
        words,
        reports=0,
        readback=0,
        *,
        p_stall=0.0,
        p_away=0.0,
        deaf=0,
        latency=4,
        silence=SILENCE,
        abort_at=None,
        stop_at=None,
        drain=False,
        seed="run",
        to=_COMMAND,
        answers=0,
        results=0,
    ) -> tuple[list[Report], list[int]]:
        """Send ``words``; return when ``reports`` statuses and ``readback`` words have come.

        p_stall: chance per cycle that a memory stalls its ar or r, or the host waits.
        p_away: chance per cycle that the host does not look for statuses and words.
        deaf: the host does not look before no word has been taken from it for so many cycles.
        latency: cycles of every memory to a burst's first word; (low, high): drawn per burst.
        abort_at: from that cycle on no word is sent, CONTROL is written, then as ``drain``.
        stop_at: return after that many cycles, whatever has come.
        drain: return when nothing more comes: idle is 1 and STATUS and READBACK are empty.
        to: the register that takes the words. answers, results: words of ANSWER and of RESULT. The
        attributes ``answers`` and ``results`` have them then. An abort waits for the results.
        AssertionError, a hang: no transfer for ``silence`` cycles. A transfer is a word of the
        program or of a memory, a burst, a status or a word read back; an empty poll is none.
        """
        rng = self._bench.rng(f"{seed} {self.cycle}")
        watch = Watch(p_stall, p_away, held=deaf, silence=silence)
        low, high = latency if isinstance(latency, tuple) else (latency, latency)
        got, taken = [], []
        sent, start, last_sent = 0, self.cycle, 0
        memories = self.memories
        self.answers, self.results = [], []
        lists = (None, taken, self.answers, self.results)
        aw, w, b = self._axil["aw"], self._axil["w"], self._axil["b"]
        ar, r = self._axil["ar"], self._axil["r"]
        b[2].value = 1
        r[2].value = 1
        self.unsent = 0  # words not taken when a deaf host began to look
        control, aborted = False, abort_at is None
        must_have = False  # a word: the run is over
        empty = [0] * 4  # times that STATUS, READBACK, ANSWER and RESULT were empty while idle

        def progress() -> str:
            return (
                f"{sent} of {len(words)} words ({COMMAND_WORDS} each) sent, "
                f"{len(got)} of {reports} statuses, {len(taken)} of {readback} words read"
            )

        while True:
            cycle = self.cycle - start
            for memory in memories:
                memory.drive(cycle, rng, p_stall)
            if not self._b and not self._aw and not self._w:
                control = not aborted and cycle >= abort_at
                more = sent < len(words) and (abort_at is None or cycle < abort_at)
                if control or (more and (not p_stall or rng.random() >= p_stall)):
                    aw[0].value = (_CONTROL if control else to) | rng.getrandbits(3) << 12
                    w[0].value = (1 if control else int(words[sent])) | 0xF << 32
                    aw[1].value = w[1].value = 1
                    self._aw = self._w = self._b = True
            if deaf and cycle - last_sent > deaf:
                deaf, self.unsent = 0, len(words) - sent
            if not self._r and not self._ar and not deaf and rng.random() >= p_away:
                # Statuses and read-back words in turn, so that neither blocks the other.
                wants = [len(got) < reports, len(taken) < readback, len(self.answers) < answers]
                wants.append(len(self.results) < results)
                # An abort leaves statuses and words, and a queue without room holds their units.
                if abort_at is not None and aborted:
                    wants[:2] = True, True
                elif not any(wants) and drain:
                    wants[:2] = True, True
                if any(wants):
                    turns = (self._polled + n for n in (1, 2, 3, 4))
                    self._polled = next(turn % 4 for turn in turns if wants[turn % 4])
                    self._asks_idle = bool(p_stall) and rng.random() < _IDLE
                    asked = _CONTROL if self._asks_idle else _POLLED[self._polled]
                    is_sent = to == RUN and sent == len(words) and cycle > last_sent + 1
                    must_have = is_sent and self._was_idle and self._polled == _RESULT
                    ar[0].value = asked | rng.getrandbits(3) << 12
                    ar[1].value = 1
                    self._ar = self._r = True
            await ReadOnly()
            idle = bool(self.dut.idle.value)
            for memory in memories:
                if memory.sample(cycle, rng.randint(low, high) if high > low else low):
                    watch.moved = cycle
            aw_gone = self._aw and bool(aw[2].value)
            w_gone = self._w and bool(w[2].value)
            ar_gone = self._ar and bool(ar[2].value)
            if self._b and b[1].value:
                if control:
                    assert int(b[0].value) == RESP_OKAY
                    aborted, control = True, False
                elif int(b[0].value) == RESP_OKAY:
                    sent, last_sent, watch.moved = sent + 1, cycle, cycle
                self._b = False
            if not (idle and aborted):
                empty = [0] * 4
            if self._r and r[1].value:
                payload = int(r[0].value)
                word, resp = payload & 0xFFFFFFFF, payload >> 32 & 3
                if self._asks_idle:
                    assert (resp, word) == (RESP_OKAY, self._was_idle << 1), "idle of CONTROL"
                elif resp != RESP_OKAY:
                    assert not must_have, "idle after RUN, and no RESULT"
                    empty[self._polled] += idle and aborted
                else:
                    watch.moved, empty = cycle, [0] * 4
                    if self._polled == 0:
                        got.append(Report(word >> 16, word >> 13 & 7, word & 0x1FFF, cycle))
                    else:
                        lists[self._polled].append(word)
                self._r = False
            self._was_idle = idle
            await FallingEdge(self.dut.clk)
            if aw_gone:
                self._aw = False
                aw[1].value = 0
            if w_gone:
                self._w = False
                w[1].value = 0
            if ar_gone:
                self._ar = False
                ar[1].value = 0
            self.cycle += 1
            if stop_at is not None and cycle >= stop_at:
                break
            if abort_at is not None:
                done = aborted and min(empty[:2]) > 1 and len(self.results) >= results
            else:
                done = len(got) >= reports and len(taken) >= readback and sent == len(words)
                done &= len(self.answers) >= answers and len(self.results) >= results
                done &= not drain or min(empty[:2]) > 1
            if done and not (self._b or self._r or self._aw or self._w or self._ar):
                break
            if stop_at is None:
                watch.check(cycle, progress)
        return got, taken
