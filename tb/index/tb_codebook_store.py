"""Runs inside the simulator, started by test_codebook_store.py: loads, swaps, reads, each cycle."""

import random
from itertools import pairwise

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from golden.words import unpack_ints
from tb.bench import config, params, vectors
from tb.simulate.ports import Signal

LOADS = [
    {
        **load,
        "info": unpack_ints(vectors[f"{n}.info"])[0],
        "words": unpack_ints(vectors[f"{n}.load"]),
        "address": vectors[f"{n}.address"].tolist(),
    }
    for n, load in enumerate(params["loads"])
]
INPUTS = ("scan_en", "scan_addr", "low_en", "low_addr", "swap")
STREAMS = ("load_info", "load")
OUTPUTS = (
    "load_info__ready", "load__ready", "loading", "loaded", "load_bad", "load_fault", "valid",
    "entries", "exponent", "low_grant", "scan_data", "low_data",
)  # fmt: skip
WORD_MASK = (1 << 16 * config.macs) - 1


class Store:
    """The outputs that the block must show, cycle by cycle; the words are golden's."""

    def __init__(self, dut, name):
        self.dut, self.rng = dut, random.Random(f"{cocotb.RANDOM_SEED} {name}")
        names = [*INPUTS, *OUTPUTS]
        names += [f"{stream}__{field}" for stream in STREAMS for field in ("payload", "valid")]
        self.port = {name: Signal(dut[name]) for name in names}
        self.running = False
        self.forget()

    def forget(self):
        """The state after a reset."""
        self.side, self.used, self.waiting = 0, None, None
        self.load, self.sent, self.fault = None, 0, 0
        self.memory: list[dict[int, int]] = [{}, {}]
        self.answer = None  # word that scan_data and low_data show in this cycle

    async def reset(self, cycles=2):
        for name in self.port.keys() - set(OUTPUTS):
            self.port[name].put(self.rng.getrandbits(self.port[name].width))
        self.dut.rst.value = 1
        if not self.running:
            Clock(self.dut.clk, 10, "ns").start(start_high=False)
            self.running = True
            await FallingEdge(self.dut.clk)
        for _ in range(cycles):
            await FallingEdge(self.dut.clk)
        self.dut.rst.value = 0
        self.forget()

    def place(self) -> int:
        """A place to read, of those written where there are some."""
        known = self.memory[self.side]
        return self.rng.choice(list(known)) if known else self.rng.randrange(config.words)

    async def cycle(self, *, info=None, word=None, swap=0, scan=None, low=None):
        """One cycle with these inputs; junk on the payloads that are not valid."""
        port, rng = self.port, self.rng
        for stream, payload in (("load_info", info and info["info"]), ("load", word)):
            valid = payload is not None
            junk = rng.getrandbits(port[f"{stream}__payload"].width)
            port[f"{stream}__payload"].put(payload if valid else junk)
            port[f"{stream}__valid"].put(int(valid))
        for client, address in (("scan", scan), ("low", low)):
            port[f"{client}_en"].put(int(address is not None))
            port[f"{client}_addr"].put(rng.randrange(config.words) if address is None else address)
        port["swap"].put(swap)
        await ReadOnly()
        self.compare(scan, low)
        await FallingEdge(self.dut.clk)
        self.advance(info, word, swap, low if scan is None else scan)

    def compare(self, scan, low):
        get = {name: self.port[name].get() for name in OUTPUTS}
        want = {
            "load_info__ready": self.load is None,
            "load__ready": self.load is not None,
            "loading": self.load is not None,
            "loaded": self.waiting is not None,
            "load_bad": self.fault != 0,
            "load_fault": self.fault,
            "valid": self.used is not None,
            "low_grant": low is not None and scan is None,
        }
        if self.used:
            want["entries"] = self.used["entries"]
            exponent = self.used["exponent"]
            want["exponent"] = exponent & (1 << self.port["exponent"].width) - 1
        if self.answer is not None:
            want["scan_data"] = want["low_data"] = self.answer
        for name, value in want.items():
            assert get[name] == value, f"{name}: {get[name]:#x}, not {int(value):#x}"

    def advance(self, info, word, swap, address):
        """The rising edge."""
        self.answer = None if address is None else self.memory[self.side].get(address)
        side = self.side
        if swap and self.waiting is not None:
            self.side, self.used, self.waiting = 1 - side, self.waiting, None
        if word is not None and self.load is not None:
            places = self.load["address"]
            if self.sent < len(places):
                self.memory[1 - side][places[self.sent]] = word & WORD_MASK
            self.sent += 1
            self.fault |= self.faults_so_far()
            if self.sent == len(self.load["words"]):
                assert self.fault == self.load["fault"]
                self.waiting = None if self.fault else self.load
                self.load = None
        elif info is not None and self.load is None:
            self.load, self.sent, self.waiting = info, 0, None
            self.fault = 0 if info["address"] else 4

    def faults_so_far(self) -> int:
        """The fault bits after the word just sent: NONFINITE 1, MAGNITUDE 2, SHAPE 4."""
        word, fault = self.load["words"][self.sent - 1], 0
        for lane in range(config.macs):
            magnitude = word >> 16 * lane & 0x7FFF
            fault |= 1 if magnitude >= 0x7C00 else 2 if magnitude > 0x3C00 else 0
        is_last = self.sent == len(self.load["words"])
        shape = self.sent > len(self.load["address"])
        shape |= is_last and self.sent < len(self.load["address"])
        return fault | 4 * shape

    async def send(self, load, *, p_idle=0.0, p_scan=0.5, p_low=0.5, until=None):
        """A whole load, or its first words; readers read, and swap is 1 at times in vain."""
        rng, first = self.rng, True
        while first or (self.load is not None and (until is None or self.sent < until)):
            reads = {
                "scan": self.place() if rng.random() < p_scan else None,
                "low": self.place() if rng.random() < p_low else None,
            }
            swap = 0 if self.waiting else rng.getrandbits(1)
            offered = rng.random() >= p_idle
            if first:
                await self.cycle(info=load if offered else None, swap=swap, **reads)
                first = not offered
            else:
                word = load["words"][self.sent] if offered else None
                early = load if rng.getrandbits(1) else None  # a load_info that has to wait
                await self.cycle(info=early, word=word, swap=swap, **reads)

    async def sweep(self, client):
        """Each word of the buffer in use, one per cycle."""
        for address in self.memory[self.side]:
            await self.cycle(**{client: address})
        await self.cycle()


@cocotb.test()
@cocotb.parametrize(p_idle=[0.0, 0.6])
async def loads_and_reads(dut, p_idle):
    """Each load, with its verdict; a good one is used or replaced by the next one."""
    store = Store(dut, "loads")
    await store.reset()
    used = 0
    for n, load in enumerate(LOADS):
        await store.send(load, p_idle=p_idle)
        for _ in range(store.rng.randrange(3)):
            await store.cycle(scan=store.place())
        if store.waiting and store.rng.random() < 0.8:
            await store.cycle(swap=1, scan=store.place())
            await store.sweep("scan" if n % 2 else "low")
            used += 1
        elif not store.waiting:
            await store.cycle(swap=1)  # in vain
            await store.sweep("scan")
    assert used > 2


@cocotb.test()
async def full_rate(dut):
    """A word per cycle into one buffer while scan reads one per cycle from the other."""
    store = Store(dut, "rate")
    await store.reset()
    good = [load for load in LOADS if not load["fault"]]
    for load in good[:3]:
        await store.send(load, p_scan=1.0, p_low=1.0)
        await store.cycle(swap=1)


@cocotb.test()
async def load_info_with_swap(dut):
    """A load that begins in the cycle of a swap fills the buffer that was in use."""
    store = Store(dut, "with")
    await store.reset()
    good = [load for load in LOADS if not load["fault"]]
    for load, following in pairwise(good):
        await store.send(load)
        await store.cycle(info=following, swap=1)
        while store.load is not None:
            await store.cycle(word=following["words"][store.sent], scan=store.place())
        await store.sweep("scan")


@cocotb.test()
async def reset_in_mid_load(dut):
    """A reset forgets both buffers; the next load is as after power-up."""
    store = Store(dut, "reset")
    await store.reset()
    good = [load for load in LOADS if not load["fault"]]
    for attempt in range(8):
        if attempt % 2:
            await store.send(good[0])
            await store.cycle(swap=1)
        load = store.rng.choice(LOADS)
        await store.send(load, until=store.rng.randrange(1, len(load["words"]) + 1))
        await store.reset(1)
        await store.cycle(swap=1)
        await store.send(good[attempt % len(good)])
        await store.cycle(swap=1)
        await store.sweep("scan")
