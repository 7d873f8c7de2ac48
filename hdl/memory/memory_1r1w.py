"""RAM with one read port and one write port (docs/blocks/memory_1r1w.md)."""

from amaranth import Module
from amaranth.lib import memory

from golden.timing import Timing
from hdl.block import Block
from hdl.kinds import BITS, index_of, mask_of
from hdl.memory.config import NAMED, MemoryConfig
from hdl.ports import In, Out


class Memory1R1W(Block):
    """``read_data`` is ``word[read_addr]`` one cycle after ``read_en``, until the next ``read_en``.

    Throughput one read and one write per cycle. A write changes the lanes set in ``write_en``
    and keeps the others; a read in a later cycle sees it. A read of the address that is being
    written in the same cycle returns an UNSPECIFIED word, because vendors' macros differ. (This
    model returns the old word.) Users avoid or forward it. Addresses of ``depth`` and above are
    illegal and not checked. Neither the words nor ``read_data`` have a reset or an initial
    value. No combinational path leads from an input to an output.

    Emitted as a module of its own that a vendor's SRAM replaces by name (docs/memory.md).
    """

    name = "memory_1r1w"
    golden = "golden.memory.reference:memory_1r1w"
    reference = "tests/memory/test_memory.py: test_1r1w_shows_the_last_write_of_each_lane"
    default = MemoryConfig()
    configs = NAMED

    is_memory_macro = True  # a black box in synthesis, listed with its bits and ports

    def __init__(self, config: MemoryConfig):
        super().__init__(
            config,
            {
                "read_en": In(1, "Read word read_addr; read_data shows it from the next cycle on."),
                "read_addr": In(
                    config.address_bits, "Word to read, below depth.", index_of("words")
                ),
                "read_data": Out(
                    config.width, "Word of the latest read, held until the next.", BITS
                ),
                "write_en": In(
                    config.lanes, "One bit per lane of word write_addr: write it.", mask_of("lanes")
                ),
                "write_addr": In(
                    config.address_bits, "Word to write, below depth.", index_of("words")
                ),
                "write_data": In(config.width, "Lanes to write, lane 0 in the low bits.", BITS),
            },
        )

    @property
    def bits(self) -> int:
        """Bits stored."""
        return self.config.bits

    timing = Timing(latency=1, start="read_en", end="read_data", unit="read and one write")

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        # The model of a one-word RAM has two, because an address has at least one bit.
        m.submodules.words = words = memory.Memory(
            shape=config.width, depth=max(2, config.depth), init=[]
        )
        write = words.write_port(granularity=config.lane_bits)
        read = words.read_port()
        m.d.comb += [
            write.en.eq(self.write_en),
            write.addr.eq(self.write_addr),
            write.data.eq(self.write_data),
            read.en.eq(self.read_en),
            read.addr.eq(self.read_addr),
            self.read_data.eq(read.data),
        ]
        return m
