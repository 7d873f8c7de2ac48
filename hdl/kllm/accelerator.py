"""KLLM's accelerator (docs/blocks/kllm_accelerator.md)."""

import dataclasses

from amaranth import Cat, Const, Module
from amaranth.lib import wiring

from golden.config import Config
from golden.index.format import K_MAX
from golden.kllm.config import LaneShape, MachineConfig, PortShape, SlotShape, VectorShape
from golden.kllm.isa import ROW_ELEMENTS, Unit
from hdl.axi.lite_registers import AxiLiteRegisters, AxiLiteRegistersConfig
from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from hdl.axi.signature import axi4_read, axi_lite, pass_channels
from hdl.block import Block
from hdl.emit import add
from hdl.kllm.dispatcher import KllmDispatcher, KllmDispatcherConfig
from hdl.kllm.engine import ROW
from hdl.kllm.functional_unit import KllmFunctionalUnit, KllmFunctionalUnitConfig
from hdl.kllm.lane.array import KllmLaneArray, KllmLaneArrayConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.load import KllmLoad, KllmLoadConfig
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.engine import KllmMatmul
from hdl.kllm.quantizer import KllmQuantizer, KllmQuantizerConfig
from hdl.kllm.readback import KllmReadback, KllmReadbackConfig
from hdl.kllm.slot_memory import KllmSlotMemory, KllmSlotMemoryConfig
from hdl.kllm.weight_supply import KllmWeightSupply, KllmWeightSupplyConfig
from hdl.memory.shared import MemoryShared, MemorySharedConfig
from hdl.ports import In, Out
from hdl.stream.link import as_bits, link
from hdl.stream.payload import pack, unpack
from hdl.stream.skid import StreamSkidBuffer, StreamSkidBufferConfig

__all__ = ["KllmAccelerator", "KllmAcceleratorConfig"]

_VECTOR_READERS = ("first", "second", "row", "a", "b", "host")


def _lane() -> KllmPeLaneConfig:
    return KllmPeLaneConfig(k_max=4096, outliers_max=128)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmAcceleratorConfig(Config):
    """Sizes of the accelerator; the defaults are those of Table I where it states them.

    Of a lane, columns are a multiple of 16, elements a divisor of 16 and integer_bits not 0.
    """

    lanes: int = 16  # PE lanes, 1..64
    lane: KllmPeLaneConfig = dataclasses.field(default_factory=_lane)  # 16 n columns, integers
    mem_ports: int = 24  # AXI4 read ports of the weights, 1..64
    port_bits: int = 1024  # bits of a weight port's word, a power of two 32..1024
    address_bits: int = 40  # bits of a byte address: 33 and those of a port's bytes, up to 64
    vector_rows: int = 4096  # rows of 16 FP16 words of the vector memory, 16..65536
    slots: int = 16  # quantized tokens held, 2..64
    slot_elements: int = 4096  # longest quantized token, 16..16383
    softmax_elements: int = 4096  # longest row of SOFTMAX, 16..16383
    width: int = 8  # elements per cycle of the functional unit: 4, 8 or 16
    weight_beats: int = 256  # weight beats that each lane keeps for its tokens, 4..16383
    queue: int = 4  # commands waiting for each unit, 3..64

    def __post_init__(self) -> None:
        self._check_range("lanes", 1, 64)
        if not isinstance(self.lane, KllmPeLaneConfig):
            self._refuse("lane", "a KllmPeLaneConfig")
        if self.lane.columns % ROW_ELEMENTS:
            self._refuse("lane", f"one whose columns are a multiple of {ROW_ELEMENTS}")
        if ROW_ELEMENTS % self.lane.elements:
            self._refuse("lane", f"one whose elements divide {ROW_ELEMENTS}")
        self._check_range("mem_ports", 1, 64)
        self._check_power_of_two("port_bits", 32, 1024)
        self._check_range("address_bits", 32, 64)
        # A command's weight address has 32 bits and counts port words; an image must end before
        # the addresses do, or it would be read from address 0 on.
        least = 33 + (self.port_bits // 8 - 1).bit_length()
        if self.address_bits < least:
            self._refuse("address_bits", f"at least {least} for ports of {self.port_bits} bits")
        self._check_range("vector_rows", 16, 1 << 16)
        self._check_range("slots", 2, 64)
        self._check_range("slot_elements", ROW_ELEMENTS, self.lane.k_max)
        self._check_range("softmax_elements", ROW_ELEMENTS, K_MAX)
        self._check_choice("width", (4, 8, 16))
        self._check_range("weight_beats", 4, K_MAX)
        self._check_range("queue", 3, 64)
        if not self.lane.integer_bits:
            self._refuse("lane", "one with integers")
        # The weight supply refuses reads of 2**24 - 2 words and more.
        most = min(ROW_ELEMENTS * self.vector_rows, (1 << 16) - 1)
        if self.machine.image_words(self.slot_elements, most) >= 2**24 - 2:
            self._refuse("mem_ports", "more at these lanes and slot_elements")
        # What the parts refuse is refused here, before elaboration.
        _ = self.matmul_config, self.quantizer_config, self.functional_config, self.slot_config
        _ = self.vector_config, self.port_config, self.data_port_config
        KllmLaneArrayConfig(lanes=self.lanes, lane=self.lane)

    @property
    def machine(self) -> MachineConfig:
        """What programs and golden.kllm.machine know of this accelerator."""
        supply = self.supply_config
        return MachineConfig(
            lane=supply.lane,
            slot=self.slot_shape,
            vectors=self.vector_shape,
            ports=supply.ports,
            product=self.lane.product,
            softmax_elements=self.softmax_elements,
            replay_beats=supply.replay_beats,
        )

    @property
    def slot_shape(self) -> SlotShape:
        return SlotShape(
            slots=self.slots,
            elements=self.slot_elements,
            outliers_max=self.lane.outliers_max,
            bits_a=self.lane.bits_a,
            integer_bits=self.lane.integer_bits,
        )

    @property
    def vector_shape(self) -> VectorShape:
        return VectorShape(rows=self.vector_rows)

    @property
    def supply_config(self) -> KllmWeightSupplyConfig:
        lane = LaneShape(
            lanes=self.lanes,
            columns=self.lane.columns,
            elements=self.lane.elements,
            bits_b=self.lane.bits_b,
        )
        ports = PortShape(ports=self.mem_ports, bits=self.port_bits)
        return KllmWeightSupplyConfig(lane=lane, ports=ports, buffer_beats=self.weight_beats)

    @property
    def matmul_config(self) -> KllmMatmulConfig:
        return KllmMatmulConfig(
            lanes=self.lanes,
            lane=self.lane,
            vectors=self.vector_shape,
            slot=self.slot_shape,
            replay_beats=self.supply_config.replay_beats,
        )

    @property
    def quantizer_config(self) -> KllmQuantizerConfig:
        return KllmQuantizerConfig(vectors=self.vector_shape, slot=self.slot_shape)

    @property
    def functional_config(self) -> KllmFunctionalUnitConfig:
        return KllmFunctionalUnitConfig(
            vectors=self.vector_shape,
            slot=self.slot_shape,
            width=self.width,
            softmax_elements=self.softmax_elements,
        )

    @property
    def slot_config(self) -> KllmSlotMemoryConfig:
        return KllmSlotMemoryConfig(slot=self.slot_shape, readers=3)

    @property
    def vector_config(self) -> MemorySharedConfig:
        return MemorySharedConfig(
            depth=self.vector_rows, width=ROW.size, readers=len(_VECTOR_READERS), writers=3
        )

    @property
    def port_config(self) -> AxiReadPortConfig:
        return AxiReadPortConfig(
            address_bits=self.address_bits, data_bits=self.port_bits, burst_beats=32
        )

    @property
    def data_port_config(self) -> AxiReadPortConfig:
        return AxiReadPortConfig(
            address_bits=self.address_bits, data_bits=ROW.size, burst_beats=16, length_bits=17
        )


class KllmAccelerator(Block):
    """Runs programs of golden.kllm.isa: the decoder layers of an LLM on K-Means-quantized data.

    Five engines (load, quantize, matmul, function, read) work on a vector memory of FP16 rows and
    on slots of quantized tokens. The dispatcher starts each command when the commands that it
    waits for are complete. So quantization, matrix products and functions of different
    tokens or heads overlap. Weights stream over ``mem_ports`` AXI4 read ports, striped word by
    word (golden.kllm.format). Constants and tokens stream over one more port of 256 bits.

    The host writes command words to COMMAND. It takes one word per command from STATUS, and the
    words of READ from READBACK (golden.axi.format). A host that takes none stops the engines, and
    loses nothing.

    Every command computes what golden.kllm.machine computes, to the bit. A command that fails
    gives the reason in its status, and those after it run. Abort: of each unit, the commands up to
    some point end as golden specifies. The others change nothing and end with ABORTED. Words that
    are not yet a command are dropped, and so is what the host sends before ``idle``. Reset in
    mid-program needs a reset of the bus too. Golden: golden.kllm.machine.Machine. Source: KLLM,
    section IV, Figures 5 and 6, Table I.
    """

    def __init__(self, config: KllmAcceleratorConfig):
        super().__init__(
            config,
            {
                "host": In(axi_lite(12), "Registers: commands, statuses, words read back."),
                "data": Out(
                    axi4_read(config.address_bits, ROW.size), "Data memory: constants and tokens."
                ),
                "idle": Out(1, "No command is queued or running."),
                "weights": Out(
                    axi4_read(config.address_bits, config.port_bits), "Weight memory, port {0}."
                ).array(config.mem_ports),
            },
        )

    @property
    def latency(self) -> str:
        return "per command: docs/kllm-commands.md"

    @property
    def throughput(self) -> str:
        lane = self.config.lane
        return (
            f"{self.config.lanes * lane.columns * lane.elements} index pairs per cycle; "
            f"{self.config.mem_ports * self.config.port_bits} bits of weights per cycle"
        )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        registers = add(
            m,
            "registers",
            AxiLiteRegisters(AxiLiteRegistersConfig(command_depth=256, readback_depth=256)),
        )
        dispatcher = add(m, "dispatcher", KllmDispatcher(KllmDispatcherConfig(queue=config.queue)))
        load = add(
            m,
            "load",
            KllmLoad(
                KllmLoadConfig(vectors=config.vector_shape, address_bits=config.address_bits)
            ),
        )
        quantizer = add(m, "quantizer", KllmQuantizer(config.quantizer_config))
        matmul = add(m, "matmul", KllmMatmul(config.matmul_config))
        function = add(m, "functional_unit", KllmFunctionalUnit(config.functional_config))
        readback = add(
            m,
            "readback",
            KllmReadback(
                KllmReadbackConfig(vectors=config.vector_shape, slot=config.slot_shape)
            ),
        )
        vectors = add(m, "vectors", MemoryShared(config.vector_config))
        slots = add(m, "slots", KllmSlotMemory(config.slot_config))
        lanes = add(
            m, "lanes", KllmLaneArray(KllmLaneArrayConfig(lanes=config.lanes, lane=config.lane))
        )
        supply = add(m, "supply", KllmWeightSupply(config.supply_config))

        engines = {
            Unit.LOAD: load,
            Unit.QUANTIZE: quantizer,
            Unit.MATMUL: matmul,
            Unit.FUNCTION: function,
            Unit.READ: readback,
        }
        m.d.comb += self.idle.eq(dispatcher.idle)
        wiring.connect(m, wiring.flipped(self.host), registers.axil)
        _link_host(m, registers, dispatcher, readback)
        _link_engines(m, dispatcher, engines)
        _link_vectors(m, vectors, engines)
        _link_slots(m, slots, engines)
        _link_lanes(m, matmul, lanes, supply, config.lanes)
        word_bits = (config.port_bits // 8 - 1).bit_length()
        for n in range(config.mem_ports):
            port = add(m, f"port_{n}", AxiReadPort(config.port_config))
            read = supply.read[n]
            m.d.comb += [
                port.command.valid.eq(read.valid),
                port.command.p.address.eq(Cat(Const(0, word_bits), read.p.address)),
                port.command.p.words.eq(read.p.words),
                read.ready.eq(port.command.ready),
            ]
            link(m, port.o, supply.data[n])
            pass_channels(m, port.axi, self.weights[n])

        data_port = add(m, "data_port", AxiReadPort(config.data_port_config))
        link(m, load.read, data_port.command)
        link(m, data_port.o, load.data)
        pass_channels(m, data_port.axi, self.data)
        return m


def _link_host(m: Module, registers, dispatcher, readback) -> None:
    """Commands from the registers, statuses and words of READ to them."""
    link(m, registers.command, dispatcher.word)
    link(m, as_bits(dispatcher.report), as_bits(registers.status))
    link(m, as_bits(readback.o), as_bits(registers.readback))
    m.d.comb += [
        dispatcher.abort_pulse.eq(registers.abort_pulse),
        registers.idle.eq(dispatcher.idle),
    ]


def _link_engines(m: Module, dispatcher, engines) -> None:
    """Commands to each unit's engine, its statuses back."""
    for unit, engine in engines.items():
        link(m, dispatcher.command[unit], engine.command)
        link(m, engine.status, dispatcher.status[unit])


def _link_vectors(m: Module, vectors, engines) -> None:
    """Clients of the vector memory, in the order of ``_VECTOR_READERS``."""
    quantizer, matmul = engines[Unit.QUANTIZE], engines[Unit.MATMUL]
    function, readback = engines[Unit.FUNCTION], engines[Unit.READ]
    readers = (
        (quantizer.first_request, quantizer.first_row),
        (quantizer.second_request, quantizer.second_row),
        (matmul.row_request, matmul.row_row),
        (function.a_request, function.a_row),
        (function.b_request, function.b_row),
        (readback.row_request, readback.row_row),
    )
    for k, (request, row) in enumerate(readers):
        _link_row(m, request, vectors.request[k])
        link(m, as_bits(vectors.answer[k]), as_bits(row))
    for k, write in enumerate((engines[Unit.LOAD].write, matmul.write, function.write)):
        sink = vectors.write[k]
        m.d.comb += [
            sink.valid.eq(write.valid),
            sink.p.address.eq(write.p.row),
            sink.p.word.eq(write.p.word),
            write.ready.eq(sink.ready),
        ]


def _link_slots(m: Module, slots, engines) -> None:
    """Clients of the slots: the quantizer writes, three engines read."""
    for name in ("entries", "outlier", "descriptor"):
        link(m, getattr(engines[Unit.QUANTIZE], name), getattr(slots, name))
    for k, unit in enumerate((Unit.MATMUL, Unit.FUNCTION, Unit.READ)):
        for request, answer in (
            ("slot", "descriptor"),
            ("entry_request", "entries"),
            ("outlier_request", "outlier"),
        ):
            link(
                m,
                getattr(engines[unit], f"slot_{request}"),
                getattr(slots, f"reader_{k}_{request}"),
            )
            link(
                m,
                getattr(slots, f"reader_{k}_{answer}"),
                getattr(engines[unit], f"slot_{answer}"),
            )


def _link_lanes(m: Module, matmul, lanes, supply, count: int) -> None:
    """``count`` lanes with the matmul engine, and their weights."""
    for name in ("job", "a", "x", "codebook"):
        link(m, getattr(matmul, name), getattr(lanes, name))
    for n in range(count):
        link(m, supply.w[n], lanes.w[n])
        # A lane takes a scale only with its sums: its ready follows from its valid. The skid
        # buffer keeps that from the supply.
        scales = add(m, f"scales_{n}", StreamSkidBuffer(StreamSkidBufferConfig(width=16)))
        pack(m, supply.s_b[n], scales.i)
        unpack(m, scales.o, lanes.s_b[n])
        link(m, lanes.y[n], matmul.y[n])
        link(m, lanes.status[n], matmul.lane_status[n])
    link(m, matmul.supply, supply.job)
    link(m, matmul.supply_rms, supply.rms)
    link(m, supply.done, matmul.supply_done)


def _link_row(m: Module, request, sink) -> None:
    """A row request to the vector memory, which has at most as many address bits as a row."""
    m.d.comb += [
        sink.valid.eq(request.valid),
        sink.p.address.eq(request.p.row),
        request.ready.eq(sink.ready),
    ]
