"""KLLM: the cycles of its own programs, on memories of the file's speed.

A step of decoding runs the program of golden.kllm.layer.program. It takes as many sequences as the
vector memory, the slots and the batch hold. Each program reads the weights once, but for those of
experts, which it reads for each token that passes them. Prefill runs the same programs with tokens
that follow each other.

The unit CACHE is built for the heads of the model: APPEND writes K and V to Oaken's pages, ATTEND
attends to them. x stays in the vector memory from layer to layer. The host reads the logits of the
last program.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from golden.config import Config, ConfigError, bounded, choice, flag
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.flow import GLU, NETWORK, ROUTER, kind_of, matmuls
from golden.kllm.format import activation_entry_bits
from golden.kllm.isa import ROW_ELEMENTS, Opcode, Unit
from golden.kllm.layer.layout import BASE, ROUTER_IMAGES
from golden.kllm.layer.program import (
    LayerProgram,
    check_room,
    head_program,
    layer_program,
    linear_sizes,
)
from golden.kllm.layer.shape import LayerOptions, LayerShape, network_parts
from golden.llm.kllm.chip import check_no_windows, chip_layer
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.format import record_bytes
from sim.constant import Interval
from sim.cost import Cost, Spent, total
from sim.energy.area import Chip
from sim.energy.area import area as netlist_area
from sim.energy.kllm import KllmEnergy, counts_of
from sim.energy.table import event_table
from sim.engine import Engine
from sim.hardware import Hardware
from sim.kllm.schedule import Placed, Timeline, timeline
from sim.kllm.units import CommandCycles, Timings, Units, measured_ranges
from sim.model import Model
from sim.sampling import sampled
from sim.work import Part, Pass

_OPERATION = {
    Opcode.LOAD: "load",
    Opcode.LOAD_AT: "load",
    Opcode.LANE_CODEBOOK: "codebooks",
    Opcode.WEIGHT_BASE: "codebooks",
    Opcode.ACTIVATION_CODEBOOK: "quantize",
    Opcode.QUANTIZE: "quantize",
    Opcode.QUANTIZE_INTEGER: "quantize",
    Opcode.READ: "read",
    Opcode.TOP_K: "router",
    Opcode.APPEND: "attention",
    Opcode.ATTEND: "attention",
}  # others are functions, but for MATMUL
_LOADED = dict.fromkeys(("codebook", "packet", BASE), "weights")
_ROW_BYTES = 2 * ROW_ELEMENTS
_PARTS_MAX = 8  # of a network: more are tried for no model
_PLACES = 64  # of the batch, the most that a machine has
_CONTEXT_MAX = 1 << 20
_SAMPLES = 3  # of the context of a long prompt: the programs between are interpolated

# How often, and tokens, context, whether each token has a sequence of its own.
_Share = tuple[float, tuple[int, int, bool]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmSettings(Config):
    """machine, set: a named machine of golden.kllm.config, and fields of it that differ.

    The model gives the machine its batch, queries and cache, but for bytes of a page. Of engines
    there are as many as divide its KV heads evenly.
    counter to attention_lanes: of sim.kllm.units.Units
    attention_macs: the same, but 0: as many as take a beat of K or V in each cycle.
    glu, fuse, share: of golden.kllm.layer.shape.LayerOptions
    chunk: most tokens of a program, but 0: as many as fit.
    energy: paper, the file's watts and areas; events, sim.energy: events of our netlists
    """

    machine: str = choice("table1", MACHINES)
    set: tuple[str, ...] = ()
    counter: str = "select"
    macs: int = 32
    function_width: int = 8
    functions: int = 1
    integer_lanes: int = 4
    queue: int = 4
    packet_words: int = choice(1, (1, ROW_ELEMENTS))
    ahead: bool = flag(False)
    banks: int = 1
    online: bool = True
    cache_bits: int = 512
    attention_lanes: int = choice(64, (16, 32, 64))
    attention_macs: int = bounded(0, 0, 512)
    glu: str = choice("index", GLU)
    fuse: bool = True
    share: float = 0.005
    chunk: int = bounded(0, 0, 256)
    energy: str = choice("paper", ("paper", "events"))

    def __post_init__(self) -> None:
        if isinstance(self.set, list):
            object.__setattr__(self, "set", tuple(self.set))
        if not isinstance(self.set, tuple) or not all(isinstance(each, str) for each in self.set):
            self._refuse("set", "a list of texts FIELD=VALUE")
        _ = self.units, self.options, self.config

    @property
    def units(self) -> Units:
        return Units(
            counter=self.counter,
            macs=self.macs,
            function_width=self.function_width,
            functions=self.functions,
            integer_lanes=self.integer_lanes,
            queue=self.queue,
            packet_words=self.packet_words,
            ahead=self.ahead,
            banks=self.banks,
            online=self.online,
            cache_bits=self.cache_bits,
            attention_lanes=self.attention_lanes,
            attention_macs=self.attention_macs or self.attention_lanes,
        )

    @property
    def options(self) -> LayerOptions:
        """The options of each layer."""
        return LayerOptions(fuse=self.fuse, glu=self.glu, share=self.share)

    @property
    def config(self) -> MachineConfig:
        made = MachineConfig.parse(MACHINES[self.machine], self.set)
        assert isinstance(made, MachineConfig)
        return made


class Kllm(Engine):
    """See the module."""

    name = "kllm"
    Settings: ClassVar[type[Config]] = KllmSettings
    samples: ClassVar[int] = 3  # a program takes 0.1 s; with 33 the sum differs by 0.6 % at most
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        "clock": ("Hz", "of the whole chip"),
        "command": ("cycles", "from a command of the host to the next"),
        "poll": ("cycles", "from one word that the host reads to the next"),
        "outliers": ("", "share of the elements of K and V in the outer and the inner group"),
        "core_power": ("W", "of the units while a pass runs, buffers apart"),
        "sram_power": ("W", "of the buffers while a pass runs"),
        "area": ("mm2", "of the chip without its memory, as the paper has it"),
        "area_ours": ("mm2", "of our chip, mapped by Yosys, its RAM by assumption"),
    }

    chip_fields: ClassVar[Collection[str]] = (
        "counter",
        "macs",
        "function_width",
        "functions",
        "integer_lanes",
        "queue",
        "packet_words",
        "ahead",
        "banks",
        "online",
        "cache_bits",
        "attention_lanes",
        "attention_macs",
        "clock",
    )
    free_fields: ClassVar[Collection[str]] = ("glu", "fuse", "share", "chunk", "energy")
    energies: ClassVar[Collection[str]] = ("core_power", "sram_power")
    areas: ClassVar[Mapping[str, Collection[str]]] = {"paper": ("area",), "ours": ("area_ours",)}
    follows: ClassVar[Mapping[str, Collection[str]]] = {
        "area": ("online",),  # Orizuru is there, and is passed by
        "area_ours": ("online",),
    }

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        self.machine: MachineConfig = self.settings.config
        self.clock = self.base("clock")
        ports = self.machine.ports
        wanted = ports.ports * ports.bits / 8 * self.clock
        self.timings = Timings.fitted(
            latency=round(self.memory.latency * self.clock),
            command=round(self.base("command")),
            poll=round(self.base("poll")),
            word=max(1.0, wanted / self.memory.bandwidth),
        )
        # Of programs without APPEND and ATTEND, which depend on a model's heads.
        self.cycles = CommandCycles(self.machine, self.settings.units, self.timings)
        self._cycles = functools.lru_cache(4096)(self._cycles_of)
        self._room = functools.lru_cache(4096)(self._check_room)
        self._options = functools.lru_cache(64)(self._options_of)
        self._energy_table = functools.lru_cache(64)(self._energy_of)
        self._layer = functools.lru_cache(4096)(self._run_layer)
        self._head = functools.lru_cache(64)(self._run_head)

    # Sizes.

    def shaping(
        self, settings: Mapping[str, Any], constants: Mapping[str, float]
    ) -> Mapping[str, Any]:
        machine = MachineConfig.parse(MACHINES[settings["machine"]], tuple(settings["set"]))
        return {**_flat(machine.describe()), **super().shaping(settings, constants)}

    @staticmethod
    def shape(model: Model, tokens: int = 1) -> LayerShape:
        """The layer of a model; ConfigError: KLLM cannot run it on sequences of ``tokens``."""
        check_no_windows(model, tokens)
        return chip_layer(model, tokens)

    def machine_of(self, shape: LayerShape) -> MachineConfig:
        """The machine with a unit CACHE for the heads of a layer, its function and its choices.

        ConfigError: it has none such.
        """
        return dataclasses.replace(
            self.machine, batch=_PLACES, cache=self._cache_of(shape), queries=shape.group,
            engines=self._engines_of(shape), extra=shape.extra, experts=shape.active,
        )  # fmt: skip

    def _engines_of(self, shape: LayerShape) -> int:
        """Counts the engines: the most, up to the machine's, that divide the model's KV heads."""
        most = min(self.machine.engines, shape.kv_heads)
        return next(each for each in range(most, 0, -1) if shape.kv_heads % each == 0)

    def _cache_of(self, shape: LayerShape) -> CacheConfig:
        return _cache_of(shape, self.machine.cache.page_bytes, self._engines_of(shape))

    def units_of(self, shape: LayerShape) -> Units:
        """The units with the products of ATTEND."""
        found = self.settings
        most = found.attention_lanes * shape.group
        return dataclasses.replace(
            found.units, attention_macs=found.attention_macs or min(most, 512)
        )

    def _cycles_of(
        self, shape: LayerShape, context: int = 0, separate: bool = False
    ) -> CommandCycles:
        units = self.units_of(shape)
        return CommandCycles(
            self.machine_of(shape), units, self.timings, context, separate, self.base("outliers")
        )

    def check(self, model: Model, batch: int, context: int) -> None:
        self.shape(model, context)
        # The last step of decoding has two tokens less before it: the program is used again.
        last = max(self._before(model, context - 2), 0)
        self._shares(model, 1, lambda _: [(1.0, (1, last, True))])

    def _image_bytes(self, length: int, outputs: int) -> float:
        ports = self.machine.ports
        return self.machine.image_words(length, outputs) * ports.ports * ports.bits / 8

    def _matmuls(self, shape: LayerShape) -> Mapping[str, Sequence[str]]:
        router = {ROUTER: (ROUTER,)} if shape.experts else {}
        return {**matmuls(self.settings.fuse, shape.intermediate, shape.gated), **router}

    def _matrices(self, shape: LayerShape) -> dict[str, "_Matrix"]:
        """Each matrix of a layer, fused ones together; of the network, that of an expert."""
        sizes = linear_sizes(shape)
        found = {}
        for name, members in self._matmuls(shape).items():
            is_of_expert = bool(shape.experts) and members[0] in NETWORK
            images = ROUTER_IMAGES if name == ROUTER else 1
            found[name] = _Matrix(
                inputs=sizes[members[0]][0],
                outputs=sum(sizes[each][1] for each in members),
                stored=shape.experts if is_of_expert else images,
                used=shape.active if is_of_expert else images,
                by_token=is_of_expert,
            )
        return found

    def _matrix_bytes(self, matrix: "_Matrix") -> float:
        return self._image_bytes(matrix.inputs, matrix.outputs)

    def weight_bytes(self, model: Model) -> float:
        matrices = self._matrices(self.shape(model)).values()
        layer = sum(each.stored * self._matrix_bytes(each) for each in matrices)
        head = self._image_bytes(model.hidden, model.vocabulary)
        embeddings = 2.0 * model.hidden * model.vocabulary  # FP16, a row for each token
        return model.layers * layer + head + embeddings

    def _record_bytes(self, shape: LayerShape) -> tuple[int, float]:
        """Records of K or V of a token, and bytes of one with the file's share of outliers."""
        kv = self._cache_of(shape).kv
        outliers = self.base("outliers") * kv.elements / kv.slots
        return kv.slots, record_bytes(kv.part_blocks, kv.block, 0) + outliers

    def kv_bytes(self, model: Model, tokens: int) -> float:
        """Records in pages, each stream by itself."""
        count, size = self._record_bytes(self.shape(model))
        page = self.machine.cache.page_bytes
        return sum(
            2.0 * each.layers * count * math.ceil(each.kept(tokens) * size / page) * page
            for each in model.alike
        )

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        machine, lane, slot = self.machine, self.machine.lane, self.machine.slot
        beat = lane.columns * lane.elements * lane.bits_b
        row = ROW_ELEMENTS * (activation_entry_bits(slot.bits_a, slot.integer_bits) + 1)
        return {
            "weights": lane.lanes * machine.replay_beats * beat / 8,
            "vectors": float(machine.vector_rows * _ROW_BYTES),
            "slots": slot.slots * (slot.rows * row / 8 + 2.0 * slot.outliers_max),
        }

    @property
    def area(self) -> Mapping[str, float]:
        if self.counts_events:
            return {name: each.value for name, each in self.area_range.items()}
        return {"paper": self.base("area"), "ours": self.base("area_ours")}

    @property
    def area_range(self) -> Mapping[str, Interval]:
        """Square metres by the configuration, the unit CACHE included."""
        if not self.counts_events:
            return super().area_range
        machine = dataclasses.replace(self.machine, batch=_PLACES)
        return {"netlists": netlist_area(Chip(machine, self.settings.units))}

    @property
    def counts_events(self) -> bool:
        """Whether energy and area follow the configuration, by ``sim.energy``."""
        return bool(self.settings.energy == "events")

    @property
    def not_scaled(self) -> Mapping[str, str]:
        return {} if self.counts_events else super().not_scaled

    def _energy_of(self, shape: LayerShape) -> KllmEnergy:
        return KllmEnergy(Chip(self.machine_of(shape), self.units_of(shape)), event_table())

    # Programs.

    @staticmethod
    def _before(model: Model, context: int) -> int:
        """Cached tokens that a token after ``context`` others attends: all, or as ``shape`` says.

        A window or a chunk is no shorter than the sequence.
        """
        return min(context, (model.window or model.chunk) - 1) if model.reach else context

    def _shares(
        self, model: Model, most: int, shares: Callable[[int], Sequence[_Share]]
    ) -> Sequence[_Share]:
        """``shares`` of the most tokens of a program, up to ``most``, for which there is room.

        shares: of so many tokens of a program. Room for some tokens says nothing about fewer, as
        what is free lies in pieces. So each number of tokens is tried downwards.
        ConfigError: there is no room for one token.
        """
        shape, refusal = self.shape(model), ""
        each = 2 if self.settings.glu == "index" else 1  # slots of a token
        slots = self.machine.slots
        room = slots - each if shape.experts else slots // each  # experts: of one at a time
        largest = min(most, self.settings.chunk or room, _PLACES)
        for tokens in range(max(1, largest), 0, -1):
            made = shares(tokens)
            try:
                for _, program in reversed(made):  # the longest first
                    self._room(shape, *program)
                for _, program in made:
                    self._layer(shape, *program)
            except ConfigError as error:
                refusal = str(error)
            else:
                return made
        raise ConfigError(f"{model.name} on {self.hardware.name}: {refusal}")

    def _check_room(self, shape: LayerShape, tokens: int, context: int, _separate: bool) -> None:
        """ConfigError: there is no room for a layer's program."""
        check_room(shape, self._options(shape), self.machine_of(shape), tokens, context)

    def _options_of(self, shape: LayerShape) -> LayerOptions:
        """Those of a layer: its network in as few parts as the vector memory has room for."""
        options, least = self.settings.options, network_parts(shape.intermediate)
        for parts in range(least, _PARTS_MAX + 1):
            more = dataclasses.replace(options, parts=0 if parts == least else parts)
            try:
                check_room(shape, more, self.machine_of(shape), 1, 0)
            except ConfigError:
                continue
            return more
        return options

    def _run_layer(self, shape: LayerShape, tokens: int, context: int, separate: bool) -> "_Ran":
        """A layer's program. ConfigError: there is no room."""
        program = layer_program(
            shape, self._options(shape), self.machine_of(shape), tokens, context, chained=True
        )
        found: dict[str, list[float]] = {}
        cycles = self._cycles(shape, context, separate)
        made = timeline(program.words, cycles, dict.fromkeys(Unit, 0))
        _add(found, made, _Names(program.layout.image), self.timings.interval)
        operations = tuple((name, *amounts) for name, amounts in found.items())
        events = self._events(program.words, cycles)
        return _Ran(operations, _loaded(program, made), events)  # type: ignore[arg-type]

    def _events(self, words: Sequence[int], cycles: CommandCycles) -> Mapping[str, float]:
        return counts_of(words, cycles) if self.counts_events else {}

    def _run_head(self, shape: LayerShape, vocabulary: int, tokens: int, cap: float) -> "_Ran":
        cycles = self._cycles(shape)
        machine = cycles.machine
        if cap:
            machine = dataclasses.replace(
                machine, extra=dataclasses.replace(machine.extra, tanh=True)
            )
        words = head_program(shape, machine, vocabulary, tokens, self.settings.share, cap)
        found: dict[str, list[float]] = {}
        made = timeline(words, cycles, dict.fromkeys(Unit, 0))
        _add(found, made, _Names({}), self.timings.interval)
        taken, port, lanes = (sum(each[n] for each in found.values()) for n in range(3))
        return _Ran((("head", taken, port, lanes),), (), self._events(words, cycles))

    # A pass.

    def cost(self, model: Model, step: Pass) -> Cost:
        shape = self.shape(model, max((p.context + p.new for p in step.parts), default=1))
        costs: list[tuple[float, Cost]] = []
        for part in step.parts:
            shares = self._prompt(model, part) if part.new > 1 else self._step(model, part)
            costs += [(factor, self._pass(model, share)) for factor, share in shares]
        if step.words:
            costs.append((1.0, self._logits(model, shape, step.words)))
        made = total(costs)
        return dataclasses.replace(
            made, energy=self._energy(made, shape), extrapolated=self._outside(model, step)
        )

    def _outside(self, model: Model, step: Pass) -> tuple[str, ...]:
        """Numbers that lie outside those of the layers that were measured."""
        longest = max((part.context for part in step.parts), default=0)
        numbers = {
            "lanes": self.machine.lanes,
            "ports": self.machine.ports.ports,
            "latency": self.timings.latency,
            "hidden": model.hidden,
            "context": longest,
        }
        known = measured_ranges()
        found = [
            f"{name} {value}, measured at {known[name][0]}..{known[name][1]}"
            for name, value in numbers.items()
            if name != "context" and not known[name][0] <= value <= known[name][1]
        ]
        if longest > known["context"][1]:
            found.append(f"contexts above {known['context'][1]}")
        return (f"KLLM's delays: {', '.join(found)}",) if found else ()

    def _step(self, model: Model, part: Part) -> Iterable[_Share]:
        """Shares of a batch."""
        context = self._before(model, part.context)

        def shares(tokens: int) -> Sequence[_Share]:
            whole, left = divmod(part.count, tokens)
            programs = ((whole, (tokens, context, True)), (1.0, (left, context, True)))
            return programs if left else programs[:1]

        return self._shares(model, part.count, shares)

    def _prompt(self, model: Model, part: Part) -> Iterable[_Share]:
        """Shares the ``new`` tokens of one sequence, in programs; the contexts are sampled."""

        def shares(tokens: int) -> Sequence[_Share]:
            whole, left = divmod(part.new, tokens)
            found = [(weight, n, tokens) for weight, n in sampled(whole, _SAMPLES)]
            found += [(1.0, whole, left)] if left else []
            return [
                (part.count * weight, (new, self._before(model, part.context + n * tokens), False))
                for weight, n, new in found
            ]

        return self._shares(model, part.new, shares)

    def _pass(self, model: Model, share: tuple[int, int, bool]) -> Cost:
        """All layers of one program's tokens."""
        shape = self.shape(model)
        tokens, context, separate = share
        found = self._layer(shape, tokens, context, separate)
        traffic = self._traffic(shape, tokens, context, separate)
        traffic["load"] = dict(found.loaded)
        macs = self._macs(shape, tokens, context, separate)
        spent = []
        # What is not on the path takes no time, but its bytes are read.
        idle = [
            (name, 0.0, 0.0, 0.0)
            for name in traffic
            if name not in {each[0] for each in found.operations}
        ]
        for name, cycles, port, lanes in (*found.operations, *idle):
            limits = {"memory": port / self.clock, "lanes": lanes / self.clock}
            if not port and not lanes:
                limits = {name: cycles / self.clock}
            spent.append(
                Spent(
                    name,
                    model.layers * cycles / self.clock,
                    {each: model.layers * seconds for each, seconds in limits.items()},
                    {k: model.layers * v for k, v in traffic.get(name, {}).items()},
                    float(model.layers * macs.get(name, 0)),
                )
            )
        events = {name: model.layers * number for name, number in found.events.items()}
        return Cost(tuple(spent), events=events)

    def _macs(self, shape: LayerShape, tokens: int, context: int, separate: bool) -> dict[str, int]:
        """Products that are added up, by operation, of one layer; the lanes select them."""
        made = {
            name: tokens * each.used * each.inputs * each.outputs
            for name, each in self._matrices(shape).items()
        }
        attended = _attended(tokens, context, separate)
        made["attention"] = 2 * attended * shape.heads * shape.head_size
        return made

    def _traffic(
        self, shape: LayerShape, tokens: int, context: int, separate: bool
    ) -> dict[str, dict[str, float]]:
        """Bytes of the memories by operation, of one layer, LOADs apart; a scale has 2.

        The experts of each token are read for it alone.
        """
        made: dict[str, dict[str, float]] = {
            name: {"weights": each.reads(tokens) * self._matrix_bytes(each)}
            for name, each in self._matrices(shape).items()
        }
        count, size = self._record_bytes(shape)
        made["attention"] = {
            "kv_read": 2.0 * _attended(tokens, context, separate) * count * size,
            "kv_written": 2.0 * tokens * count * size,
        }
        return made

    def _logits(self, model: Model, shape: LayerShape, words: int) -> Cost:
        chunk = max(1, min(words, self.machine.slots // 2, _PLACES))
        while True:
            try:
                found = self._head(shape, model.vocabulary, chunk, model.logit_cap)
                break
            except ConfigError:
                if chunk == 1:
                    raise
                chunk //= 2
        times = -(-words // chunk)
        read = self._image_bytes(model.hidden, model.vocabulary)
        spent = [
            Spent(
                name,
                times * cycles / self.clock,
                {"memory": times * port / self.clock, "lanes": times * lanes / self.clock},
                {"weights": times * read},
                float(words * model.hidden * model.vocabulary),
            )
            for name, cycles, port, lanes in found.operations
        ]
        return Cost(tuple(spent), events={k: times * n for k, n in found.events.items()})

    def _energy(self, cost: Cost, shape: LayerShape) -> dict[str, Interval]:
        constants = self.hardware.constants
        if self.counts_events:
            return {
                **self._energy_table(shape).joules(cost.events, cost.seconds, self.clock),
                "dram": self.memory.joules(cost.bytes),
                "dram static": self.memory.watts * cost.seconds,
            }
        return {
            "static": self.memory.watts * cost.seconds,
            "dram": self.memory.joules(cost.bytes),
            "sram": constants["sram_power"].interval * cost.seconds,
            "core": constants["core_power"].interval * cost.seconds,
        }


class _Matrix(NamedTuple):
    """A matrix of a layer.

    stored : images in the memory, of all experts
    used : of them, by a token; by_token: a program reads them for each token
    """

    inputs: int
    outputs: int
    stored: int
    used: int
    by_token: bool

    def reads(self, tokens: int) -> int:
        """Images that a program of so many tokens reads."""
        return self.used * (tokens if self.by_token else 1)


def _attended(tokens: int, context: int, separate: bool) -> int:
    """Cached tokens that the new ones attend to, each its own too, added up."""
    return tokens * (context + 1) + (0 if separate else tokens * (tokens - 1) // 2)


@functools.cache
def _cache_of(shape: LayerShape, page_bytes: int, engines: int) -> CacheConfig:
    """The pages of a sequence, with K and V of a token in as few records as fit. ConfigError."""
    refusal = ConfigError(f"no records hold {shape.kv_heads} KV heads of {engines} engines")
    for groups in range(engines, shape.kv_heads + 1, engines):
        try:
            kv = KvShape(
                heads=shape.kv_heads, head_dim=shape.head_size, order="token", groups=groups,
                block=64 if shape.head_size % 64 == 0 else 32,
            )  # fmt: skip
            return CacheConfig(
                kv=kv, sequences=1, layers=1, pages=1 << 20, page_bytes=page_bytes,
                max_tokens=_CONTEXT_MAX, caps=bool(shape.cap), sinks=shape.sinks,
            )  # fmt: skip
        except ConfigError as error:
            refusal = error
    raise refusal


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Fields of shapes as ``lane.lanes``."""
    made: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else None
        made |= inner if inner is not None else {f"{before}{name}": value}
    return made


@dataclasses.dataclass(frozen=True)
class _Ran:
    """A layer's program.

    operations : each with cycles, those of the ports, those of the lanes
    loaded : bytes of all LOADs, by what they are
    events : counts of ``sim.energy.kllm``, where they are wanted
    """

    operations: tuple[tuple[str, float, float, float], ...]
    loaded: tuple[tuple[str, float], ...]
    events: Mapping[str, float] = dataclasses.field(default_factory=dict)


def _loaded(program: LayerProgram, line: Timeline) -> tuple[tuple[str, float], ...]:
    """Codebooks, packets and bases count as weights, others as activations."""
    places = sorted((first, name) for name, (first, _) in program.layout.place.items())
    firsts = [first for first, _ in places]
    found: dict[str, float] = {}
    for each in line.placed:
        if each.rows:
            place = bisect.bisect_right(firsts, each.address) - 1
            name = places[place][1].rstrip("0123456789.")
            what = _LOADED.get(name.partition(".")[0], "activations")
            found[what] = found.get(what, 0.0) + float(_ROW_BYTES * each.rows)
    return tuple(found.items())


class _Names:
    """Operations of a program's commands."""

    def __init__(self, image: Mapping[str, tuple[int, int, int]]):
        self.addresses: list[tuple[int, str]] = sorted(
            (place[0], kind_of(name)) for name, place in image.items()
        )

    def of(self, placed: Placed) -> str:
        if placed.opcode != Opcode.MATMUL:
            return _OPERATION.get(placed.opcode, "functions")
        found = [name for address, name in self.addresses if address <= placed.address]
        return found[-1] if found else "head"


def _add(found: dict[str, list[float]], made: Timeline, names: _Names, word: float) -> None:
    """Add the cycles of the path by operation, of no resource more than of the operation.

    word: cycles from a port's word to the next.
    """
    for number, cycles in made.path():
        placed: Any = None if number is None else made.placed[number]
        name = "host" if placed is None else names.of(placed)
        amounts = found.setdefault(name, [0.0, 0.0, 0.0])
        amounts[0] += cycles
        if placed is not None and placed.opcode == Opcode.MATMUL:
            amounts[1] += min(cycles, placed.words * word)
            amounts[2] += min(cycles, placed.compute)
