"""AXI4-Lite register file with queues to the chip (docs/blocks/axi_lite_registers.md)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream

from golden.axi.format import (
    CACHE_REGISTERS,
    COUNTERS,
    ID_WORD,
    LEVELS_COMMAND_MOST,
    LEVELS_STATUS_MOST,
    REGISTERS,
    RESP_OKAY,
    RESP_SLVERR,
    Register,
)
from golden.config import Config, bounded
from golden.timing import Timing
from hdl.axi.signature import axi_lite
from hdl.block import Block
from hdl.kinds import BITS, NUMBER
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue

_WORD_BITS = 32
_ANSWERS = 2  # of each direction: one leaves while the next one comes
_RAM_FROM = 32  # words of a queue from which on it is a RAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxiLiteRegistersConfig(Config):
    """Depths of the register file's queues; above 32 words a queue is a RAM."""

    address_bits: int = bounded(12, 5, 64, "bits of AWADDR and ARADDR")
    version: int = bounded(0x0001_0000, 0, (1 << 32) - 1, "word of VERSION")
    command_depth: int = bounded(64, 1, 65_535, "words")
    status_depth: int = bounded(64, 1, 65_535, "words")
    readback_depth: int = bounded(64, 1, 65_535, "words")
    cache_depth: int = bounded(0, 0, 65_535, "words of each queue of CACHE_REGISTERS; 0: none")

    def __post_init__(self) -> None:
        if self.cache_depth and self.address_bits < 7:
            self._refuse("cache_depth", "0 with address_bits below 7")

    @property
    def word_layout(self) -> data.StructLayout:
        return Payload(data=(_WORD_BITS, "register word", BITS))

    def storage(self, depth: int) -> str:
        """The storage of a queue of ``depth`` words: memory or flip-flops."""
        return "memory" if depth > _RAM_FROM else "flipflop"


class AxiLiteRegisters(Block):
    """Registers of ``golden.axi.format.REGISTERS`` on AXI4-Lite: queues to and from the chip.

    A write to COMMAND goes to ``command``. A read of STATUS or READBACK takes the oldest word of
    ``status`` or ``readback``. LEVELS gives the room and the words waiting. The bus never waits for
    the chip:

        access                                          answer
        a command into a full queue                     SLVERR; the command is dropped
        a read of an empty queue                        SLVERR, word 0
        an access that the map does not know            SLVERR

    With ``cache_depth``, CACHE_REGISTERS are there too: REQUEST, ANSWER, BATCH, RUN and RESULT,
    each with a queue, and COUNTERS, which read as the words of ``counter``.

    The low two address bits and PROT are ignored. ``abort_pulse`` does not empty the queues.

    Every answer comes 2 cycles after the last of address and data. Each direction completes 1
    access per cycle, reads and writes independent. No combinational path leads from an input to
    an output. Golden: golden.axi.reference.RegisterModel. Source: Arm IHI 0022H.
    """

    golden = "golden.axi.reference:RegisterModel"
    reference = "tests/axi/test_axi.py: test_register_model_by_hand"
    default = AxiLiteRegistersConfig()
    configs: ClassVar = {
        "small": AxiLiteRegistersConfig(
            address_bits=6, command_depth=5, status_depth=3, readback_depth=1
        ),
        "cache": AxiLiteRegistersConfig(cache_depth=64),
    }

    registers: ClassVar[Mapping[str, Register]] = REGISTERS

    def __init__(self, config: AxiLiteRegistersConfig):
        word = stream.Signature(config.word_layout)
        super().__init__(
            config,
            {
                "axil": In(axi_lite(config.address_bits), "AXI4-Lite subordinate."),
                "command": Out(word, "Words written to COMMAND, in order."),
                "status": In(word, "Words for STATUS."),
                "readback": In(word, "Words for READBACK."),
                "abort_pulse": Out(1, "For one cycle: 1 was written to bit 0 of CONTROL."),
                "idle": In(1, "Nothing is under way: bit 1 of CONTROL."),
                **(self._cache_members(word) if config.cache_depth else {}),
            },
        )

    @staticmethod
    def _cache_members(word: stream.Signature) -> dict:
        return {
            "request": Out(word, "Words written to REQUEST, in order."),
            "answer": In(word, "Words for ANSWER."),
            "batch": Out(word, "Words written to BATCH, in order."),
            "run": Out(word, "Words written to RUN, in order."),
            "result": In(word, "Words for RESULT."),
            "counter": In(
                data.ArrayLayout(_WORD_BITS, len(COUNTERS)), "Words for COUNTERS, in order.", NUMBER
            ),
        }

    @property
    def register_map(self) -> Mapping[str, Register]:
        return {**REGISTERS, **(CACHE_REGISTERS if self.config.cache_depth else {})}

    # A read and a write at the same time.
    timing = Timing(
        latency=2,
        start="the last of address and data",
        end="the answer",
        unit="read and one write",
        words=tuple((f"axil__{channel}", 1) for channel in ("aw", "w", "b", "ar", "r")),
    )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        word = config.word_layout
        queues = {
            name: queue(m, f"{name}_queue", word, depth, storage=config.storage(depth))
            for name, depth in (
                ("command", config.command_depth),
                ("status", config.status_depth),
                ("readback", config.readback_depth),
            )
        }
        command, status, readback = queues.values()
        link(m, command.o, self.command)
        link(m, self.status, status.i)
        link(m, self.readback, readback.i)
        pushed, popped = {}, {}
        if config.cache_depth:
            for name in ("request", "answer", "batch", "run", "result"):
                queues[name] = queue(
                    m, f"{name}_queue", word, config.cache_depth,
                    storage=config.storage(config.cache_depth),
                )  # fmt: skip
            for name in ("request", "batch", "run"):
                link(m, queues[name].o, getattr(self, name))
                pushed[name.upper()] = queues[name].i
            for name in ("answer", "result"):
                link(m, getattr(self, name), queues[name].i)
                popped[name.upper()] = queues[name].o
        self._write(m, {"COMMAND": command.i, **pushed})
        self._read(m, command, status, readback, popped)
        return m

    def _write(self, m: Module, pushed) -> None:
        bus = self.axil
        answers = queue(m, "b_queue", bus.b.p.shape(), _ANSWERS)
        link(m, answers.o, bus.b)
        has_aw = Signal()
        has_w = Signal()
        index = Signal(self.config.address_bits - 2, reset_less=True)
        w = Signal(bus.w.p.shape(), reset_less=True)
        perform = Signal()
        answer = Signal(2)
        m.d.comb += [
            bus.aw.ready.eq(~has_aw | perform),
            bus.w.ready.eq(~has_w | perform),
            perform.eq(has_aw & has_w & answers.i.ready),
            answers.i.valid.eq(perform),
            answers.i.p.resp.eq(answer),
        ]
        with m.If(bus.aw.ready):
            m.d.sync += [has_aw.eq(bus.aw.valid), index.eq(bus.aw.p.addr[2:])]
        with m.If(bus.w.ready):
            m.d.sync += [has_w.eq(bus.w.valid), w.eq(bus.w.p)]

        abort = Signal()
        m.d.comb += [
            *(words.p.data.eq(w.data) for words in pushed.values()),
            self.abort_pulse.eq(abort),
            answer.eq(RESP_SLVERR),
        ]
        m.d.sync += abort.eq(0)
        with m.Switch(index):
            with m.Case(REGISTERS["CONTROL"].offset // 4):
                m.d.comb += answer.eq(RESP_OKAY)
                m.d.sync += abort.eq(perform & w.strb[0] & w.data[0])
            for name, words in pushed.items():
                with m.Case(self.register_map[name].offset // 4):
                    with m.If(w.strb.all() & words.ready):
                        m.d.comb += [words.valid.eq(perform), answer.eq(RESP_OKAY)]

    def _read(self, m: Module, command, status, readback, popped) -> None:
        bus, config = self.axil, self.config
        answers = queue(m, "r_queue", bus.r.p.shape(), _ANSWERS)
        link(m, answers.o, bus.r)
        has_ar = Signal()
        index = Signal(config.address_bits - 2, reset_less=True)
        perform = Signal()
        answer = answers.i.p
        m.d.comb += [
            bus.ar.ready.eq(~has_ar | perform),
            perform.eq(has_ar & answers.i.ready),
            answers.i.valid.eq(perform),
        ]
        with m.If(bus.ar.ready):
            m.d.sync += [has_ar.eq(bus.ar.valid), index.eq(bus.ar.p.addr[2:])]

        levels = data.StructLayout({"command": 16, "status": 15, "readback": 1})
        room = Signal(range(LEVELS_COMMAND_MOST + 1))
        waiting = Signal(range(LEVELS_STATUS_MOST + 1))
        waits = status.level
        if config.status_depth > LEVELS_STATUS_MOST:
            waits = Mux(waits[15], LEVELS_STATUS_MOST, waits)
        m.d.comb += [
            room.eq(config.command_depth - command.level),
            waiting.eq(waits),
            answer.resp.eq(RESP_SLVERR),
        ]
        shown = Signal(levels)
        m.d.comb += [
            shown.command.eq(room),
            shown.status.eq(waiting),
            shown.readback.eq(readback.level != 0),
        ]
        words = {
            "ID": ID_WORD,
            "VERSION": config.version,
            "CONTROL": Cat(Const(0, 1), self.idle),
            "LEVELS": shown.as_value(),
        }
        if config.cache_depth:
            words |= dict(zip(COUNTERS, self.counter, strict=True))
        with m.Switch(index):
            for name, word in words.items():
                with m.Case(self.register_map[name].offset // 4):
                    m.d.comb += [answer.data.eq(word), answer.resp.eq(RESP_OKAY)]
            popped = {"STATUS": status.o, "READBACK": readback.o, **popped}
            for name, words in popped.items():
                with m.Case(self.register_map[name].offset // 4), m.If(words.valid):
                    m.d.comb += [
                        answer.data.eq(words.p.data),
                        answer.resp.eq(RESP_OKAY),
                        words.ready.eq(perform),
                    ]
