"""RAM with one port that reads or writes (docs/blocks/memory_1rw.md)."""

from amaranth import Module, Mux
from amaranth.lib import memory

from golden.timing import Timing
from hdl.block import Block
from hdl.kinds import BITS, index_of, mask_of
from hdl.memory.config import NAMED, MemoryConfig
from hdl.ports import In, Out


class Memory1RW(Block):
    """Each cycle with ``en``: a write if ``write``, else a read.

    ``read_data`` is ``word[addr]`` one cycle after a read, until the next read: writes and idle
    cycles do not change it. A write changes the lanes set in ``write_lanes`` and keeps the
    others. Addresses of ``depth`` and above are illegal and not checked. Neither the words nor
    ``read_data`` have a reset or an initial value. No combinational path leads from an input
    to an output.

    Emitted as a module of its own that a vendor's SRAM replaces by name (docs/memory.md).
    """

    name = "memory_1rw"
    golden = "golden.memory.reference:memory_1rw"
    reference = "tests/memory/test_memory.py: test_1rw_shows_the_last_write_of_each_lane"
    default = MemoryConfig()
    configs = NAMED

    is_memory_macro = True  # a black box in synthesis, listed with its bits and ports

    def __init__(self, config: MemoryConfig):
        super().__init__(
            config,
            {
                "en": In(1, "Access word addr in this cycle."),
                "write": In(1, "With en: 1 writes, 0 reads."),
                "addr": In(config.address_bits, "Word to access, below depth.", index_of("words")),
                "write_lanes": In(
                    config.lanes, "With en and write: one bit per lane to write.", mask_of("lanes")
                ),
                "write_data": In(config.width, "Lanes to write, lane 0 in the low bits.", BITS),
                "read_data": Out(
                    config.width, "Word of the latest read, held until the next.", BITS
                ),
            },
        )

    @property
    def bits(self) -> int:
        """Bits stored."""
        return self.config.bits

    timing = Timing(latency=1, start="a read", end="read_data", unit="read or write")

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
            write.en.eq(Mux(self.en & self.write, self.write_lanes, 0)),
            write.addr.eq(self.addr),
            write.data.eq(self.write_data),
            read.en.eq(self.en & ~self.write),
            read.addr.eq(self.addr),
            self.read_data.eq(read.data),
        ]
        return m
