"""One RAM with several readers and writers (docs/blocks/memory_shared.md)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from amaranth import Array, Module, Signal
from amaranth.hdl import Value
from amaranth.lib import data, stream

from golden.config import Config, bounded, power_of_two
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.kinds import BITS, index_of
from hdl.memory.config import MemoryConfig
from hdl.memory.memory_1r1w import Memory1R1W
from hdl.ports import In, Out, Payload
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemorySharedConfig(Config):
    """Shape of the RAM and number of its clients. Every bank has words."""

    depth: int = bounded(256, 2, 1 << 20, "words")
    width: int = bounded(32, 1, 2048, "bits of one word")
    readers: int = bounded(2, 1, 16, "read clients")
    writers: int = bounded(2, 1, 16, "write clients")
    answers: int = bounded(4, 2, 64, "answers that each reader may have waiting")
    banks: int = power_of_two(1, 1, 8, "RAMs; the lowest bits of an address choose one")

    def __post_init__(self) -> None:
        if self.depth < 2 * self.banks:
            self._refuse("depth", f"at least {2 * self.banks} in {self.banks} banks")

    @property
    def memory(self) -> MemoryConfig:
        """All banks as one."""
        return MemoryConfig(depth=self.depth, width=self.width)

    @property
    def bank(self) -> MemoryConfig:
        return MemoryConfig(depth=-(-self.depth // self.banks), width=self.width)

    @property
    def bank_bits(self) -> int:
        """Bits of an address that choose the bank."""
        return self.banks.bit_length() - 1

    @property
    def request_layout(self) -> data.StructLayout:
        return Payload(
            address=(self.memory.address_bits, "word of the memory, below depth", index_of("words"))
        )

    @property
    def answer_layout(self) -> data.StructLayout:
        return Payload(word=(self.width, "contents of the word", BITS))

    @property
    def write_layout(self) -> data.StructLayout:
        return Payload(
            address=(
                self.memory.address_bits,
                "word of the memory, below depth",
                index_of("words"),
            ),
            word=(self.width, "contents of the word", BITS),
        )


class MemoryShared(Block):
    """``answer_k``: ``word[address]`` of every ``request_k``, in order; ``write_k`` changes words.

    Each bank makes one read and one write per cycle, and a client one of them. The clients that
    request a bank share it round-robin. A reader that does not take its answers is passed over. A
    write is seen by every read whose request is taken in a later cycle. The two never meet one
    address in one cycle: the read waits. Words have no reset. Latency 2 cycles from a request to
    its answer. Addresses of ``depth`` and above are illegal and not checked. ``request_k.ready``
    and ``write_k.ready`` depend combinationally on the ``valid`` and the addresses of all clients.
    No ``valid`` depends on an input.
    """

    golden = "golden.memory.reference:memory_shared"
    reference = "tests/memory/test_memory.py: test_shared_reads_are_those_of_an_array"
    default = MemorySharedConfig()
    configs: ClassVar = {
        "rows": MemorySharedConfig(depth=4096, width=256, readers=6, writers=3),
        "banks": MemorySharedConfig(depth=2048, width=256, readers=7, writers=4, banks=2),
    }

    def __init__(self, config: MemorySharedConfig):
        super().__init__(
            config,
            {
                "request": In(
                    stream.Signature(config.request_layout), "Addresses that reader {0} wants."
                ).array(config.readers),
                "answer": Out(
                    stream.Signature(config.answer_layout),
                    "The words of reader {0}'s requests, in order.",
                ).array(config.readers),
                "write": In(
                    stream.Signature(config.write_layout), "Words that writer {0} changes."
                ).array(config.writers),
            },
        )

    # Of each bank, over all clients: one read and one write per cycle.
    timing = Timing(latency=2, start="a request", end="its answer", unit="read and one write")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        banks = [_Bank(m, self, n) for n in range(config.banks)]
        for k, write in enumerate(self.write):
            m.d.comb += write.ready.eq(_any([bank.takes_write(k) for bank in banks]))
        # Readers: only those whose answer has a place, and not at the address being written.
        wants = []
        for k, request in enumerate(self.request):
            answers = queue(m, f"answers_{k}", config.width, config.answers)
            answer = self.answer[k]
            credit = Signal(range(config.answers + 1), name=f"credit_{k}", init=config.answers)
            want = Signal(name=f"want_{k}")
            arrives = [bank.arriving & (bank.owner == k) for bank in banks]
            meets = _any([bank.writes(request.p.address) for bank in banks])
            m.d.comb += [
                answers.i.valid.eq(_any(arrives)),
                answers.i.p.eq(banks[0].ram.read_data),
                answer.valid.eq(answers.o.valid),
                answer.p.word.eq(answers.o.p),
                answers.o.ready.eq(answer.ready),
                want.eq(request.valid & (credit != 0) & ~meets),
            ]
            for bank, arrive in zip(banks[1:], arrives[1:], strict=True):
                with m.If(arrive):
                    m.d.comb += answers.i.p.eq(bank.ram.read_data)
            taken, given = request.valid & request.ready, answer.valid & answer.ready
            m.d.sync += credit.eq(credit - taken + given)
            wants.append(want)
        for bank in banks:
            bank.read(m, self.request, wants)
        for k, request in enumerate(self.request):
            m.d.comb += request.ready.eq(_any([bank.takes_read(k) for bank in banks]))
        return m


class _Bank:
    """A RAM with the words whose lowest address bits are ``number``.

    arriving: it shows the word of the reader ``owner``
    """

    def __init__(self, m: Module, block: MemoryShared, number: int):
        config = block.config
        self.config, self.number = config, number
        name = "" if config.banks == 1 else f"_{number}"
        self._name = name
        self.ram = add(m, f"ram{name}", Memory1R1W(config.bank))
        self.arriving = Signal(name=f"arriving{name}")
        self.owner = Signal(range(max(config.readers, 2)), name=f"owner{name}")
        self._write_address = Signal(config.memory.address_bits, name=f"write_address{name}")
        writes = block.write
        wants = [self._mine(write.valid, write.p.address) for write in writes]
        self._writer, self._any_write = _round_robin(m, wants, f"write{name}")
        m.d.comb += [
            self._write_address.eq(Array(write.p.address for write in writes)[self._writer]),
            self.ram.write_en.eq(self._any_write),
            self.ram.write_addr.eq(self._write_address[config.bank_bits :]),
            self.ram.write_data.eq(Array(write.p.word for write in writes)[self._writer]),
        ]

    def _mine(self, want: Value, address: Value) -> Value:
        """Whether a client wants a word of this bank."""
        bits = self.config.bank_bits
        return want & (address[:bits] == self.number) if bits else want

    def writes(self, address: Value) -> Value:
        """Whether the word at ``address`` is written in this cycle."""
        return self._any_write & (address == self._write_address)

    def takes_write(self, client: int) -> Value:
        return self._any_write & (self._writer == client)

    def takes_read(self, client: int) -> Value:
        return self._any_read & (self._reader == client)

    def read(self, m: Module, requests, wants: Sequence[Value]) -> None:
        """``wants``: of each reader, whether its request can be taken."""
        mine = [
            self._mine(want, request.p.address)
            for want, request in zip(wants, requests, strict=True)
        ]
        self._reader, self._any_read = _round_robin(m, mine, f"read{self._name}")
        address = Array(request.p.address for request in requests)[self._reader]
        m.d.comb += [
            self.ram.read_en.eq(self._any_read),
            self.ram.read_addr.eq(address[self.config.bank_bits :]),
        ]
        m.d.sync += self.arriving.eq(self._any_read)
        with m.If(self._any_read):
            m.d.sync += self.owner.eq(self._reader)


def _any(values: Sequence[Value]) -> Value:
    found = values[0]
    for value in values[1:]:
        found = found | value
    return found


def _round_robin(m: Module, wants: list, name: str):
    """(index, any) of the first that wants, after the one served last."""
    count = len(wants)
    choice = Signal(range(max(count, 2)), name=f"{name}_choice")
    last = Signal(range(max(count, 2)), name=f"{name}_last")
    found = Signal(name=f"{name}_any")
    for k in reversed(range(count)):
        with m.If(wants[k]):
            m.d.comb += choice.eq(k)
    for k in reversed(range(1, count)):
        with m.If(wants[k] & (last < k)):
            m.d.comb += choice.eq(k)
    m.d.comb += found.eq(_any(wants))
    with m.If(found):
        m.d.sync += last.eq(choice)
    return choice, found
