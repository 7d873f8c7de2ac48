"""KLLM's accelerator (docs/blocks/kllm_accelerator.md)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from amaranth import Cat, Const, Module
from amaranth.lib import wiring

from golden.axi.format import CACHE_REGISTERS, REGISTERS, Register
from golden.axi.timing import read_port
from golden.config import Config, Shape, bounded, choice, flag, nested, power_of_two
from golden.index.format import K_MAX
from golden.isa import CommandSet
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.isa import COMMAND_WORDS, ROW_ELEMENTS, SET, Unit
from golden.kllm.timing import dispatcher
from golden.timing import Timing
from hdl.axi.lite_registers import AxiLiteRegisters, AxiLiteRegistersConfig
from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from hdl.axi.signature import axi4_read, axi_lite, pass_channels
from hdl.block import Block
from hdl.children import add
from hdl.kllm.activity import KllmActivity, KllmActivityConfig
from hdl.kllm.batch import KllmBatch, KllmBatchConfig
from hdl.kllm.cache.config import KllmCacheConfig
from hdl.kllm.cache.engine import KllmCache
from hdl.kllm.cache.host import KllmCacheHost, KllmCacheHostConfig
from hdl.kllm.dispatcher import KllmDispatcher, KllmDispatcherConfig
from hdl.kllm.engine import ROW, slot_client
from hdl.kllm.fetch import KllmFetch, KllmFetchConfig
from hdl.kllm.function.pipeline import FUNCTIONS
from hdl.kllm.function.unit import KllmFunctionalUnit, KllmFunctionalUnitConfig
from hdl.kllm.guarded import guarded
from hdl.kllm.lane.array import KllmLaneArray, KllmLaneArrayConfig
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.engine import KllmMatmul
from hdl.kllm.outliers.orizuru import KllmOrizuruConfig
from hdl.kllm.quantize.quantizer import KllmQuantizer, KllmQuantizerConfig
from hdl.kllm.slots.choices import KllmChoices, KllmChoicesConfig
from hdl.kllm.slots.load import KllmLoad, KllmLoadConfig
from hdl.kllm.slots.memory import KllmSlotMemory, KllmSlotMemoryConfig
from hdl.kllm.slots.read_share import KllmReadShare, KllmReadShareConfig
from hdl.kllm.slots.readback import KllmReadback, KllmReadbackConfig
from hdl.kllm.weights.supply import KllmWeightSupply, KllmWeightSupplyConfig
from hdl.memory.shared import MemoryShared, MemorySharedConfig
from hdl.oaken.attention import OakenAttention, OakenAttentionConfig
from hdl.oaken.attention_array import OakenAttentionArray, OakenAttentionArrayConfig
from hdl.oaken.kv_engine import OakenKvEngineConfig
from hdl.oaken.mmu import PagingMmuConfig
from hdl.ports import In, Out
from hdl.stream.fifo import StreamFifoConfig
from hdl.stream.link import as_bits, link, link_members
from hdl.stream.skid import skid

_REGISTERS = AxiLiteRegistersConfig(command_depth=256, readback_depth=256)
_CACHE_DEPTH = 64  # words of the host's requests, 16 of them, of their answers, and of the batch
_VECTOR_READERS = ("first", "second", "row", "a", "b", "host")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmLaneBuild(Shape):
    """The choices by which a lane of the accelerator is built; programs see nothing of them."""

    counter: str = "select"  # micro-architecture: select, or flipflop, the paper's
    macs: int = 32  # MACs of the reducer, a power of two 1..256; select: unused
    weight_buffer_beats: int = 8  # depth of the weight buffer, 3..1024
    coding: str = "gates"  # gates, or sums that simulate faster; select alone has both
    packet_words: int = 1  # words of a codebook packet per cycle, 1 or 16; flipflop: 1
    outlier_parts: int = power_of_two(1, 1, ROW_ELEMENTS, "cycles of an outlier")
    scaler_stages: int = choice(6, (6, 9, 12), "cycles of the scaler")

    def __post_init__(self) -> None:
        KllmPeLaneConfig(
            counter=self.counter,
            macs=self.macs,
            weight_buffer_beats=self.weight_buffer_beats,
            coding=self.coding,
            packet_words=self.packet_words,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmQuantizerBuild(Shape):
    """The choices by which the quantizer is built; programs see nothing of them."""

    orizuru: str = choice(
        KllmOrizuruConfig.architecture, ("parallel", "shared"), "of the two trees"
    )
    orizuru_stages: int = bounded(1, 1, 4, "cycles of a tournament of 16; parallel: 1")
    integer_lanes: int = power_of_two(4, 1, ROW_ELEMENTS, "dividers of QUANTIZE_INTEGER")
    threshold_multipliers: int = bounded(5, 1, 5, "thresholds scaled per cycle, at most")
    clustering_parts: int = power_of_two(1, 1, ROW_ELEMENTS, "cycles of a row in the clustering")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmCacheBuild(Shape):
    """The choices by which the unit CACHE is built; programs see nothing of them."""

    data_bits: int = power_of_two(512, 64, 1024, "bits of a word of the pages' memory")
    lanes: int = choice(64, (16, 32, 64), "elements of K or V per cycle")
    macs: int = bounded(64, 16, 512, "products per cycle: lanes times a divisor of queries")
    burst_beats: int = bounded(64, 1, 256, "words of the longest burst")
    outstanding: int = bounded(16, 1, 16, "bursts read ahead")
    reads: int = bounded(8, 1, 16, "READs under way")
    appends: int = bounded(4, 1, 16, "APPENDs accepted and not yet complete")
    token_beats: int = bounded(256, 4, 4096, "words of the queue in front of records")
    queue: int = bounded(4, 2, 64, "requests of each kind that wait")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmAcceleratorConfig(Config):
    """The machine, and how it is built; the defaults are those of Table I where it states them.

    The accelerator serves fewer machines than there are. It takes 16 rows of the vector memory or
    more, 64 slots or fewer and 4 replay beats or more. With a batch it takes a cache of order
    token, and ``queries`` of 1 or more. ``cache`` is unused without one.
    """

    # With a batch alone, the array with several engines.
    conditional_parts: ClassVar[tuple[str, ...]] = (
        "activity_config", "array_config", "attention_config", "batch_config", "cache_config",
        "choices_config", "fetch_config", "share_config",
    )  # fmt: skip

    machine: MachineConfig = nested(MachineConfig, "programs see this")
    build: KllmLaneBuild = nested(KllmLaneBuild, "of every lane")
    quantizer: KllmQuantizerBuild = nested(KllmQuantizerBuild, "of the unit QUANTIZE")
    cache: KllmCacheBuild = nested(KllmCacheBuild, "of the unit CACHE; without a batch: unused")
    address_bits: int = bounded(
        40, 32, 64, "bits of a byte address, 33 and those of a port's bytes at least"
    )
    width: int = power_of_two(8, 1, 16, "elements per cycle of the functional unit")
    functions: int = choice(1, FUNCTIONS, "elements per cycle of FUNCTION")
    banks: int = choice(1, (1, 2, 4), "of the vector memory, each a read and a write per cycle")
    queue: int = bounded(4, 3, 64, "commands waiting for each unit")
    ahead: bool = flag(False, "QUANTIZE and FUNCTION begin with the rows that they wait for")

    def __post_init__(self) -> None:
        machine = self.machine
        # A command's weight address has 32 bits and counts port words; an image must end before
        # the addresses do, or it would be read from address 0 on.
        least = 33 + (machine.ports.bits // 8 - 1).bit_length()
        if self.address_bits < least:
            self._refuse("address_bits", f"at least {least} for ports of {machine.ports.bits} bits")
        self._check_range("machine.vectors.rows", 16, 1 << 16)
        self._check_range("machine.slot.slots", 2, 64)
        self._check_range("machine.replay_beats", 4, K_MAX)
        if machine.batch:
            self._check_range("machine.queries", 1, 8)
        # The weight supply refuses reads of 2**24 - 2 words and more.
        most = min(ROW_ELEMENTS * machine.vectors.rows, (1 << 16) - 1)
        if machine.image_words(machine.slot.elements, most) >= 2**24 - 2:
            self._refuse("machine.ports", "more or wider at these lanes and tokens")
        # What the parts refuse is refused here, before elaboration.
        self.check_parts()
        if machine.batch:
            for part in self.conditional_parts:
                if part != "array_config" or machine.engines > 1:
                    getattr(self, part).check_parts()

    @property
    def lane(self) -> KllmPeLaneConfig:
        slot, lane = self.machine.slot, self.machine.lane
        return KllmPeLaneConfig(
            bits_a=slot.bits_a,
            bits_b=lane.bits_b,
            elements=lane.elements,
            columns=lane.columns,
            k_max=slot.elements,
            integer_bits=slot.integer_bits,
            outliers_max=slot.outliers_max,
            counter=self.build.counter,
            product=self.machine.product,
            antisymmetric=self.machine.antisymmetric,
            macs=self.build.macs,
            weight_buffer_beats=self.build.weight_buffer_beats,
            coding=self.build.coding,
            packet_words=self.build.packet_words,
            outlier_parts=self.build.outlier_parts,
            scaler_stages=self.build.scaler_stages,
        )

    @property
    def lanes_config(self) -> KllmLaneArrayConfig:
        return KllmLaneArrayConfig(lanes=self.machine.lane.lanes, lane=self.lane)

    @property
    def supply_config(self) -> KllmWeightSupplyConfig:
        machine = self.machine
        return KllmWeightSupplyConfig(
            lane=machine.lane, ports=machine.ports, buffer_beats=machine.replay_beats,
            come=self.ahead,
        )  # fmt: skip

    @property
    def matmul_config(self) -> KllmMatmulConfig:
        machine = self.machine
        return KllmMatmulConfig(
            lanes=machine.lane.lanes,
            lane=self.lane,
            vectors=machine.vectors,
            slot=machine.slot,
            replay_beats=machine.replay_beats,
            front=self.ahead,
            based=bool(machine.experts),
        )

    @property
    def dispatcher_config(self) -> KllmDispatcherConfig:
        machine = self.machine
        return KllmDispatcherConfig(
            units=machine.units, queue=self.queue, counts=bool(machine.batch), ahead=self.ahead
        )

    @property
    def activity_config(self) -> KllmActivityConfig:
        return KllmActivityConfig(units=self.machine.units)

    @property
    def load_config(self) -> KllmLoadConfig:
        machine = self.machine
        return KllmLoadConfig(
            vectors=machine.vectors, address_bits=self.address_bits, batch=machine.batch,
            experts=machine.experts,
        )  # fmt: skip

    @property
    def quantizer_config(self) -> KllmQuantizerConfig:
        return KllmQuantizerConfig(
            vectors=self.machine.vectors,
            slot=self.machine.slot,
            **self.quantizer.describe(),
        )

    @property
    def functional_config(self) -> KllmFunctionalUnitConfig:
        return KllmFunctionalUnitConfig(
            vectors=self.machine.vectors,
            slot=self.machine.slot,
            width=self.width,
            functions=self.functions,
            softmax_elements=self.machine.softmax_elements,
            front=self.ahead,
            extra=self.machine.extra,
        )

    @property
    def readback_config(self) -> KllmReadbackConfig:
        machine = self.machine
        return KllmReadbackConfig(
            vectors=machine.vectors, slot=machine.slot, batch=machine.batch, top=machine.top,
            experts=machine.experts,
        )  # fmt: skip

    @property
    def choices_config(self) -> KllmChoicesConfig:
        """Unused without experts."""
        machine = self.machine
        return KllmChoicesConfig(places=max(machine.batch, 1), experts=max(machine.experts, 1))

    @property
    def fetch_config(self) -> KllmFetchConfig:
        machine = self.machine
        return KllmFetchConfig(
            units=machine.units, machine=machine.word, address_bits=self.address_bits
        )

    @property
    def share_config(self) -> KllmReadShareConfig:
        return KllmReadShareConfig(address_bits=self.address_bits, readers=2)

    @property
    def slot_config(self) -> KllmSlotMemoryConfig:
        return KllmSlotMemoryConfig(slot=self.machine.slot, readers=3)

    @property
    def vector_config(self) -> MemorySharedConfig:
        return MemorySharedConfig(
            depth=self.machine.vectors.rows,
            width=ROW.size,
            readers=len(_VECTOR_READERS) + bool(self.machine.batch),
            writers=3 + bool(self.machine.batch),
            banks=self.banks,
        )

    @property
    def registers_config(self) -> AxiLiteRegistersConfig:
        return dataclasses.replace(
            _REGISTERS, cache_depth=_CACHE_DEPTH if self.machine.batch else 0
        )

    @property
    def attention_config(self) -> OakenAttentionConfig:
        """Each engine has these sizes."""
        build = self.cache
        mmu = PagingMmuConfig(
            cache=self.machine.cache_part,
            data_bits=build.data_bits,
            address_bits=self.address_bits,
            burst_beats=build.burst_beats,
            outstanding=build.outstanding,
            reads=build.reads,
            appends=build.appends,
            token_beats=build.token_beats,
        )
        engine = OakenKvEngineConfig(mmu=mmu, lanes=build.lanes, queue=build.queue)
        return OakenAttentionConfig(
            engine=engine, queries=self.machine.queries, macs=build.macs, width=ROW_ELEMENTS
        )

    @property
    def array_config(self) -> OakenAttentionArrayConfig:
        """Several engines as one; unused with one."""
        return OakenAttentionArrayConfig(
            engines=self.machine.engines, part=self.attention_config
        )

    @property
    def cache_config(self) -> KllmCacheConfig:
        machine = self.machine
        return KllmCacheConfig(
            vectors=machine.vectors,
            places=machine.batch,
            cache=machine.cache,
            queries=machine.queries,
            lanes=self.cache.lanes,
            engines=machine.engines,
        )

    @property
    def batch_config(self) -> KllmBatchConfig:
        return KllmBatchConfig(places=self.machine.batch, readers=2, top=self.machine.top)

    @property
    def port_config(self) -> AxiReadPortConfig:
        return AxiReadPortConfig(
            address_bits=self.address_bits, data_bits=self.machine.ports.bits, burst_beats=32
        )

    @property
    def data_port_config(self) -> AxiReadPortConfig:
        return AxiReadPortConfig(
            address_bits=self.address_bits, data_bits=ROW.size, burst_beats=16, length_bits=17
        )


_SMALL = KllmLaneBuild(macs=16, weight_buffer_beats=4)
_BUILDS = {"small": {"build": _SMALL}, "smollm2_cache": {"cache": KllmCacheBuild(macs=192)}}
_BUILDS["small_cache"] = {
    "build": _SMALL,
    "cache": KllmCacheBuild(
        data_bits=128, lanes=16, macs=16, burst_beats=8, outstanding=4, reads=4, appends=2,
        token_beats=16, queue=2,
    ),
}  # fmt: skip
_BUILDS["smollm2_cache3"] = _BUILDS["smollm2_cache"]
_BUILDS["small_cache2"] = _BUILDS["small_forks"] = _BUILDS["small_cache"]
_WIDE = {"build": KllmLaneBuild(packet_words=16), "functions": 8, "banks": 2, "ahead": True}
_BUILDS["smollm2_wide"] = {**_BUILDS["smollm2_cache"], **_WIDE}
_BUILDS["table1_wide"] = {**_WIDE, "width": 16, "banks": 4}
_BUILDS["narrow"] = {
    "build": KllmLaneBuild(macs=16, weight_buffer_beats=4, outlier_parts=4, scaler_stages=9),
    "quantizer": KllmQuantizerBuild(
        orizuru_stages=4, integer_lanes=1, threshold_multipliers=1, clustering_parts=16
    ),
    "width": 1,
    "queue": 3,
}


class KllmAccelerator(Block):
    """Runs programs of golden.kllm.isa: the decoder layers of an LLM on K-Means-quantized data.

    Five engines (load, quantize, matmul, function, read) work on a vector memory of FP16 rows and
    on slots of quantized tokens. With a batch there is a sixth, the cache. It has K and V of
    several sequences in pages of the memory at ``kv``, from address 0 on, and attends to them. With
    several ``machine.engines`` each has some of the KV heads, and pages and a port of its own. The
    dispatcher starts each command when the commands that it waits for are complete. So
    quantization, matrix products and functions of different tokens or heads overlap. Weights
    stream over ``machine.ports`` AXI4 read ports, striped word by word (golden.kllm.format).
    Constants and tokens stream over one more port of 256 bits.

    The host writes command words to COMMAND. It takes one word per command from STATUS, and the
    words of READ from READBACK (golden.axi.format). A host that takes none stops the engines, and
    loses nothing. With a batch it writes requests to REQUEST, takes their answers from ANSWER, and
    writes the batch to BATCH. RUN names a program in the data memory. The commands of that come as
    if the host sent them, and RESULT has one word for all of them (golden.kllm.fetch). The chip
    counts the cycles in which each unit is at work; CYCLES and the registers after it give them.

    Every command computes what golden.kllm.machine computes, to the bit. A command that fails
    gives the reason in its status, and those after it run. Abort: of each unit, the commands up to
    some point end as golden specifies. The others change nothing and end with ABORTED. Words that
    are not yet a command are dropped, and so is what the host sends before ``idle``. Reset in
    mid-program needs a reset of the bus too. Golden: golden.kllm.machine.Machine. Source: KLLM,
    section IV, Figures 5 and 6, Table I.
    """

    golden = "golden.kllm.machine:Machine"
    reference = "tests/kllm/test_layer.py: test_machine_computes_the_quantized_layer"
    default = KllmAcceleratorConfig()
    configs: ClassVar = {
        name: KllmAcceleratorConfig(machine=machine, **_BUILDS.get(name, {}))
        for name, machine in MACHINES.items()
    }
    checked = "small"

    commands: ClassVar[CommandSet | None] = SET
    registers: ClassVar[Mapping[str, Register]] = REGISTERS

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
                    axi4_read(config.address_bits, config.machine.ports.bits),
                    "Weight memory, port {0}.",
                ).array(config.machine.ports.ports),
                **(self._cache_members(config) if config.machine.batch else {}),
            },
        )

    @staticmethod
    def _cache_members(config: KllmAcceleratorConfig) -> dict:
        engines = config.machine.engines
        signature = config.attention_config.engine.mmu.axi_signature
        if engines == 1:
            return {"kv": Out(signature, "AXI4 manager: the memory of the pages of K and V.")}
        text = "AXI4 manager: the memory of the pages of engine {0}."
        return {"kv": Out(signature, text).array(engines)}

    @property
    def register_map(self) -> Mapping[str, Register]:
        return {**REGISTERS, **(CACHE_REGISTERS if self.config.machine.batch else {})}

    @property
    def timing(self) -> Timing:
        """LOADs of one row find their engine idle. The host writes a word in every access.

        A word passes the registers, their queue and the dispatcher. The engine then requests the
        row. The last cycles are those of the status. Other commands take the cycles of their units
        after the dispatcher's; docs/kllm-commands.md has them.
        """
        depth = _REGISTERS.command_depth
        words = StreamFifoConfig(depth=depth, storage=_REGISTERS.storage(depth))
        registers, port = AxiLiteRegisters.timing, read_port(buffered=True)
        steps = (
            registers.latency - 1,  # the word enters the queue a cycle before the answer
            words.latency,
            dispatcher(COMMAND_WORDS).latency,
            KllmLoad.timing.latency,
            port.latency,
        )
        interval = max(registers.interval * COMMAND_WORDS, dispatcher(COMMAND_WORDS).interval)
        return Timing(
            latency=sum(steps),
            interval=interval,
            start="a LOAD's last word on host__w",
            end="data__ar",
            unit="command",
            delays=(("from its final data__r to idle", port.delay("from axi__r to o") + 2),),
        )

    @property
    def throughput(self) -> str:
        lane, ports = self.config.machine.lane, self.config.machine.ports
        return (
            f"{super().throughput}; {lane.group_outputs * lane.elements} index pairs per cycle; "
            f"{ports.ports * ports.bits} bits of weights per cycle"
        )

    def elaborate(self, platform) -> Module:
        config = self.config
        m = Module()
        registers = add(
            m,
            "registers",
            AxiLiteRegisters(config.registers_config),
        )
        has_batch = bool(config.machine.batch)
        dispatcher = add(m, "dispatcher", KllmDispatcher(config.dispatcher_config))
        load = add(m, "load", KllmLoad(config.load_config))
        quantizer = add(m, "quantizer", KllmQuantizer(config.quantizer_config))
        matmul = add(m, "matmul", KllmMatmul(config.matmul_config))
        function = add(m, "functional_unit", KllmFunctionalUnit(config.functional_config))
        readback = add(m, "readback", KllmReadback(config.readback_config))
        vectors = add(m, "vectors", MemoryShared(config.vector_config))
        slots = add(m, "slots", KllmSlotMemory(config.slot_config))
        lanes = add(m, "lanes", KllmLaneArray(config.lanes_config))
        supply = add(m, "supply", KllmWeightSupply(config.supply_config))

        engines = {
            Unit.LOAD: load,
            Unit.QUANTIZE: quantizer,
            Unit.MATMUL: matmul,
            Unit.FUNCTION: function,
            Unit.READ: readback,
        }
        if has_batch:
            engines[Unit.CACHE] = _add_cache(m, self, registers, load, readback)
        wiring.connect(m, wiring.flipped(self.host), registers.axil)
        fetch = add(m, "fetch", KllmFetch(config.fetch_config)) if has_batch else None
        _link_host(m, self, registers, dispatcher, readback, fetch)
        _link_engines(m, dispatcher, engines)
        _link_vectors(m, vectors, engines, config.ahead)
        _link_slots(m, slots, engines)
        _link_lanes(m, matmul, lanes, supply, config.machine.lane.lanes)
        if config.ahead:
            m.d.comb += [
                matmul.come.eq(supply.come),
                dispatcher.certain[Unit.MATMUL].eq(matmul.front.valid),
                dispatcher.certain[Unit.FUNCTION].eq(function.front.valid),
            ]
        word_bits = (config.machine.ports.bits // 8 - 1).bit_length()
        for n in range(config.machine.ports.ports):
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
        if fetch is None:
            link(m, load.read, data_port.command)
            link(m, data_port.o, load.data)
        else:
            share = add(m, "share", KllmReadShare(config.share_config))
            for k, reader in enumerate((load, fetch)):
                link(m, reader.read, share.i[k])
                link(m, share.o[k], reader.data)
            link(m, share.read, data_port.command)
            link(m, data_port.o, share.data)
        pass_channels(m, data_port.axi, self.data)
        return m


def _add_cache(m: Module, block: KllmAccelerator, registers, load, readback) -> KllmCache:
    """The unit CACHE, the batch, and the pages: its engine. The pages begin at address 0."""
    config = block.config
    unit = add(m, "cache", KllmCache(config.cache_config))
    batch = add(m, "batch", KllmBatch(config.batch_config))
    host = add(m, "cache_host", KllmCacheHost(KllmCacheHostConfig()))
    is_one = config.machine.engines == 1
    attention = add(
        m, "attention",
        OakenAttention(config.attention_config) if is_one
        else OakenAttentionArray(config.array_config),
    )  # fmt: skip
    link(m, registers.batch, batch.i)
    link(m, registers.request, host.word)
    link(m, host.answer, registers.answer)
    link(m, host.request, unit.host_request)
    link(m, unit.host_status, host.status)
    link_members(m, unit, attention, ("request", "kv", "attend", "q"))
    link_members(m, attention, unit, ("o", "attended"))
    link(m, attention.status, unit.ended)
    m.d.comb += [
        batch.index[0].eq(unit.index),
        unit.entry.eq(batch.entry[0]),
        batch.index[1].eq(load.index),
        load.entry.eq(batch.entry[1]),
        unit.present.eq(batch.present),
        attention.base.eq(0),
    ]
    memories = [(attention.axi, block.kv)] if is_one else zip(attention.axi, block.kv, strict=True)
    for axi, kv in memories:
        pass_channels(m, axi, kv)
    if config.machine.experts:
        choices = add(m, "choices", KllmChoices(config.choices_config))
        link(m, readback.chosen, choices.i)
        m.d.comb += [
            choices.index.eq(load.index),
            choices.rank.eq(load.rank),
            load.choice.eq(choices.choice),
        ]
    if config.readback_config.has_choices:
        m.d.comb += [batch.chooses.eq(readback.chooses), readback.choice.eq(batch.choice)]
    return unit


def _link_host(m: Module, block, registers, dispatcher, readback, fetch) -> None:
    """Commands from the registers, statuses, words of READ and counts to them; programs between."""
    link(m, as_bits(readback.o), as_bits(registers.readback))
    m.d.comb += [
        dispatcher.abort_pulse.eq(registers.abort_pulse),
        registers.idle.eq(block.idle),
    ]
    if fetch is None:
        link(m, registers.command, dispatcher.word)
        link(m, as_bits(dispatcher.report), as_bits(registers.status))
        m.d.comb += block.idle.eq(dispatcher.idle)
        return
    link(m, registers.command, fetch.word)
    link(m, fetch.o, dispatcher.word)
    link(m, dispatcher.report, fetch.report)
    link(m, as_bits(fetch.status), as_bits(registers.status))
    link(m, registers.run, fetch.run)
    link(m, as_bits(fetch.answer), as_bits(registers.result))
    activity = add(m, "activity", KllmActivity(block.config.activity_config))
    m.d.comb += [
        activity.busy.eq(dispatcher.busy),
        Cat(*registers.counter).eq(Cat(*activity.count)),
        fetch.abort_pulse.eq(registers.abort_pulse),
        fetch.dispatcher_idle.eq(dispatcher.idle),
        fetch.partial.eq(dispatcher.partial),
        Cat(*fetch.issued).eq(Cat(*dispatcher.issued)),
        block.idle.eq(dispatcher.idle & fetch.idle),
    ]


def _link_engines(m: Module, dispatcher, engines) -> None:
    """Commands to each unit's engine, its statuses back."""
    for unit, engine in engines.items():
        link(m, dispatcher.command[unit], engine.command)
        link(m, engine.status, dispatcher.status[unit])
    link(m, dispatcher.release, engines[Unit.MATMUL].release)


def _link_vectors(m: Module, vectors, engines, ahead: bool) -> None:
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
    results = function.write
    fronts = {}
    if ahead:
        fronts = {0: function.front, 1: function.front, 3: matmul.front, 4: matmul.front}
        results = guarded(m, "guard_write", results, matmul.front, writes=True)
    writers = [engines[Unit.LOAD].write, matmul.write, results]
    if Unit.CACHE in engines:
        cache = engines[Unit.CACHE]
        readers = (*readers, (cache.row_request, cache.row_row))
        writers.append(cache.write)
    for k, (request, row) in enumerate(readers):
        if k in fronts:
            request = guarded(m, f"guard_{k}", request, fronts[k])
        _link_row(m, request, vectors.request[k])
        link(m, as_bits(vectors.answer[k]), as_bits(row))
    for k, write in enumerate(writers):
        sink = vectors.write[k]
        m.d.comb += [
            sink.valid.eq(write.valid),
            sink.p.address.eq(write.p.row),
            sink.p.word.eq(write.p.word),
            write.ready.eq(sink.ready),
        ]


def _link_slots(m: Module, slots, engines) -> None:
    """Clients of the slots: the quantizer writes, three engines read."""
    link_members(m, engines[Unit.QUANTIZE], slots, ("entries", "outlier", "descriptor"))
    for k, unit in enumerate((Unit.MATMUL, Unit.FUNCTION, Unit.READ)):
        served = slot_client(slots, f"reader_{k}")
        for its, port in zip(slot_client(engines[unit], "slot"), served, strict=True):
            link(m, its.request, port.request)
            link(m, port.answer, its.answer)


def _link_lanes(m: Module, matmul, lanes, supply, count: int) -> None:
    """``count`` lanes with the matmul engine, and their weights."""
    link_members(m, matmul, lanes, ("job", "a", "x", "codebook"))
    for n in range(count):
        link(m, supply.w[n], lanes.w[n])
        # A lane takes a scale only with its sums: its ready follows from its valid. The skid
        # buffer keeps that from the supply.
        scales = skid(m, f"scales_{n}", supply.s_b[n].p.shape())
        link(m, supply.s_b[n], scales.i)
        link(m, scales.o, lanes.s_b[n])
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
