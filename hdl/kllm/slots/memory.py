"""The activation slots: entries, outliers and descriptors."""

import dataclasses

from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config, bounded, nested
from golden.kllm.config import SlotShape
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.kllm.engine import (
    SlotClient,
    descriptor_layout,
    entry_row_layout,
    entry_write_layout,
    outlier_write_layout,
    slot_client,
    slot_read,
)
from hdl.memory.shared import MemoryShared, MemorySharedConfig
from hdl.ports import In, Out, Payload

descriptor_write_layout = Payload(
    slot=outlier_write_layout.parts["slot"], descriptor=(descriptor_layout, "what the slot holds")
)


def slot_ends() -> dict:
    """Members that end the writing of a slot after its rows: outliers, then the descriptor."""
    return {
        "outlier": Out(
            stream.Signature(outlier_write_layout), "Outlier words of a slot, ascending position."
        ),
        "descriptor": Out(
            stream.Signature(descriptor_write_layout), "What the slot holds, written last."
        ),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmSlotMemoryConfig(Config):
    """Size of the slots and number of their readers."""

    slot: SlotShape = nested(SlotShape, "the slots")
    readers: int = bounded(3, 1, 8, "read clients")

    def __post_init__(self) -> None:
        most = (1 << 20) // max(self.slot.rows, self.slot.outliers_max)  # words of a RAM
        if self.slot.slots > most:
            self._refuse("slot.slots", f"at most {most} at these sizes")


class KllmSlotMemory(Block):
    """``slots`` tokens as the lanes take them: entry rows, outlier words and a descriptor each.

    Three RAMs with a write client each (the quantizer's) and ``readers`` read clients: entry row
    ``slot * slot_rows + row``, outlier ``slot * outliers_max + position``, descriptor ``slot``.
    One read and one write per RAM and cycle over all clients (hdl.memory.shared). After reset
    every descriptor reads 0 (not valid): for ``slots`` cycles nothing is served. Rows and positions
    beyond a slot are illegal and not checked: engines check lengths against descriptors.

    A read takes 2 cycles to its answer, and answers come in the order of requests. It returns every
    write that was accepted in an earlier cycle. Readers take turns, and a stalled reader stalls no
    other. Reset does not change entries and outliers.
    """

    tier = Tier.PART
    golden = "golden.memory.reference:memory_shared"
    configs = FieldOf("kllm_accelerator", "slot_config", ("table1", "small"))

    def __init__(self, config: KllmSlotMemoryConfig):
        write = {
            "entries": (
                entry_write_layout(config.slot.bits_a, config.slot.integer_bits),
                "Rows of 16 entries and outlier mask into a slot.",
            ),
            "outlier": (outlier_write_layout, "Outlier words into a slot, ascending positions."),
            "descriptor": (descriptor_write_layout, "What a slot holds."),
        }
        members = {
            name: In(stream.Signature(layout), text) for name, (layout, text) in write.items()
        }
        for k in range(config.readers):
            for name, member in slot_read(
                f"reader_{k}", config.slot.bits_a, config.slot.integer_bits
            ).items():
                members[name] = member.flip()
        super().__init__(config, members)

    timing = Timing(latency=2, start="a request", end="its answer", unit="read and one write")

    @property
    def _clients(self) -> tuple[SlotClient, ...]:
        """Streams of each read client: the ports ``reader_k_...``."""
        return tuple(slot_client(self, f"reader_{k}") for k in range(self.config.readers))

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()

        def ram(name: str, depth: int, width: int):
            return add(
                m,
                name,
                MemoryShared(
                    MemorySharedConfig(
                        depth=max(depth, 2), width=width, readers=config.readers, writers=1
                    )
                ),
            )

        def connect(memory, write, word, place, reads) -> None:
            """Write client 0 and the readers; place: payload of a request -> address."""
            m.d.comb += [
                memory.write[0].valid.eq(write.valid),
                memory.write[0].p.address.eq(place(write.p)),
                memory.write[0].p.word.eq(word),
                write.ready.eq(memory.write[0].ready),
            ]
            for k, (request, answer) in enumerate(reads):
                source, sink = memory.request[k], memory.answer[k]
                m.d.comb += [
                    source.valid.eq(request.valid),
                    source.p.address.eq(place(request.p)),
                    request.ready.eq(source.ready),
                    answer.valid.eq(sink.valid),
                    answer.p.as_value().eq(sink.p.word),
                    sink.ready.eq(answer.ready),
                ]

        def entry_place(p):
            return p.slot * config.slot.rows + p.row

        def outlier_place(p):
            return p.slot * config.slot.outliers_max + p.position

        rows = entry_row_layout(config.slot.bits_a, config.slot.integer_bits)
        connect(
            ram("entry_ram", config.slot.slots * config.slot.rows, rows.size),
            self.entries,
            self.entries.p.entries,
            entry_place,
            [client.entries for client in self._clients],
        )
        connect(
            ram("outlier_ram", config.slot.slots * config.slot.outliers_max, 16),
            self.outlier,
            self.outlier.p.word,
            outlier_place,
            [client.outlier for client in self._clients],
        )

        # Descriptors, cleared after reset before anyone is served.
        memory = ram("descriptor_ram", config.slot.slots, descriptor_layout.size)
        clearing = Signal(init=1)
        place = Signal(range(config.slot.slots))
        write = self.descriptor
        m.d.comb += [
            memory.write[0].valid.eq(write.valid | clearing),
            memory.write[0].p.address.eq(Mux(clearing, place, write.p.slot)),
            memory.write[0].p.word.eq(Mux(clearing, 0, write.p.descriptor)),
            write.ready.eq(memory.write[0].ready & ~clearing),
        ]
        with m.If(clearing & memory.write[0].ready):
            m.d.sync += [place.eq(place + 1), clearing.eq(place != config.slot.slots - 1)]
        for k, client in enumerate(self._clients):
            request, answer = client.descriptor
            source, sink = memory.request[k], memory.answer[k]
            m.d.comb += [
                source.valid.eq(request.valid & ~clearing),
                source.p.address.eq(request.p.slot),
                request.ready.eq(source.ready & ~clearing),
                answer.valid.eq(sink.valid),
                answer.p.as_value().eq(sink.p.word),
                sink.ready.eq(answer.ready),
            ]
        return m
