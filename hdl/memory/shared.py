"""One RAM with several readers and writers (docs/blocks/memory_shared.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Array, Module, Signal
from amaranth.lib import data, stream

from golden.config import Config, bounded
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
    """Shape of the RAM and number of its clients."""

    depth: int = bounded(256, 2, 1 << 20, "words")
    width: int = bounded(32, 1, 2048, "bits of one word")
    readers: int = bounded(2, 1, 16, "read clients")
    writers: int = bounded(2, 1, 16, "write clients")
    answers: int = bounded(4, 2, 64, "answers that each reader may have waiting")

    @property
    def memory(self) -> MemoryConfig:
        return MemoryConfig(depth=self.depth, width=self.width)

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

    One read and one write per cycle in all. The clients that request share them round-robin. A
    reader that does not take its answers is passed over. A write is seen by every read whose
    request is taken in a later cycle. The two never meet one address in one cycle: the read waits.
    Words have no reset. Latency 2 cycles from a request to its answer. Addresses of ``depth`` and
    above are illegal and not checked. ``request_k.ready`` and ``write_k.ready`` depend
    combinationally on the ``valid`` and the addresses of all clients. No ``valid`` depends on an
    input.
    """

    golden = "golden.memory.reference:memory_shared"
    reference = "tests/memory/test_memory.py: test_shared_reads_are_those_of_an_array"
    default = MemorySharedConfig()
    configs: ClassVar = {"rows": MemorySharedConfig(depth=4096, width=256, readers=6, writers=3)}

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

    # Over all clients: one read and one write per cycle.
    timing = Timing(latency=2, start="a request", end="its answer", unit="read and one write")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        ram = add(m, "ram", Memory1R1W(config.memory))
        requests = self.request
        writes = self.write

        # Writers, round robin.
        write_wants = [write.valid for write in writes]
        write_choice, write_any = _round_robin(m, write_wants, "write")
        write_address = Signal(config.memory.address_bits)
        m.d.comb += [
            write_address.eq(Array(write.p.address for write in writes)[write_choice]),
            ram.write_en.eq(write_any),
            ram.write_addr.eq(write_address),
            ram.write_data.eq(Array(write.p.word for write in writes)[write_choice]),
        ]
        for k, write in enumerate(writes):
            m.d.comb += write.ready.eq(write_any & (write_choice == k))

        # Readers: only those whose answer has a place, and not at the address being written.
        arriving = Signal()  # the RAM shows the word of the reader `owner`
        owner = Signal(range(max(config.readers, 2)))
        wants = []
        for k, request in enumerate(requests):
            answers = queue(m, f"answers_{k}", config.width, config.answers)
            answer = self.answer[k]
            credit = Signal(range(config.answers + 1), name=f"credit_{k}", init=config.answers)
            want = Signal(name=f"want_{k}")
            m.d.comb += [
                answers.i.valid.eq(arriving & (owner == k)),
                answers.i.p.eq(ram.read_data),
                answer.valid.eq(answers.o.valid),
                answer.p.word.eq(answers.o.p),
                answers.o.ready.eq(answer.ready),
                want.eq(
                    request.valid
                    & (credit != 0)
                    & ~(write_any & (request.p.address == write_address))
                ),
            ]
            taken, given = request.valid & request.ready, answer.valid & answer.ready
            m.d.sync += credit.eq(credit - taken + given)
            wants.append(want)
        choice, any_read = _round_robin(m, wants, "read")
        m.d.comb += [
            ram.read_en.eq(any_read),
            ram.read_addr.eq(Array(request.p.address for request in requests)[choice]),
        ]
        for k, request in enumerate(requests):
            m.d.comb += request.ready.eq(any_read & (choice == k))
        m.d.sync += arriving.eq(any_read)
        with m.If(any_read):
            m.d.sync += owner.eq(choice)
        return m


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
    any_want = wants[0]
    for want in wants[1:]:
        any_want = any_want | want
    m.d.comb += found.eq(any_want)
    with m.If(found):
        m.d.sync += last.eq(choice)
    return choice, found
