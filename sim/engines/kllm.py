"""KLLM: the cycles of its own programs, on memories of the file's speed.

A step of decoding runs the programs of golden.kllm.layer.program. A program takes as many sequences
as the vector memory and the slots hold. Each program reads the weights once. Prefill runs the same
programs with tokens that follow each other.

    seconds of a layer = (cycles of part 0 + cycles of part 1) / clock + the host's hand-over

The host appends K and V between the parts. x stays in the vector memory from layer to layer. The
host reads the logits of the last program.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from golden.config import Config, ConfigError, bounded, choice
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.flow import FUSED, GLU, LINEARS, SCORES, matmuls
from golden.kllm.format import activation_entry_bits
from golden.kllm.isa import ROW_ELEMENTS, Opcode, Unit
from golden.kllm.layer.program import (
    LayerProgram,
    check_room,
    head_program,
    layer_program,
    linear_sizes,
)
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.llm.kllm.chip import chip_layer
from sim.calibration import ranges
from sim.constant import Interval
from sim.cost import Cost, Spent, total
from sim.engine import Engine
from sim.hardware import Hardware
from sim.kllm.schedule import Placed, Timeline, timeline
from sim.kllm.units import CommandCycles, Timings, Units
from sim.model import Model
from sim.sampling import sampled
from sim.work import Part, Pass

_OPERATION = {
    Opcode.LOAD: "load",
    Opcode.LANE_CODEBOOK: "codebooks",
    Opcode.ACTIVATION_CODEBOOK: "quantize",
    Opcode.QUANTIZE: "quantize",
    Opcode.QUANTIZE_INTEGER: "quantize",
    Opcode.READ: "read",
    Opcode.READ_SLOT: "read",
}  # others are functions, but for MATMUL
_CHEAPEST = "cheapest"
_LOADED = {"v_scale": "kv_read", "codebook": "weights", "packet": "weights"}
_ROW_BYTES = 2 * ROW_ELEMENTS
_SAMPLES = 3  # of the context of a long prompt: the programs between are interpolated
_TRIED = 64  # programs of a prompt for which there must be room: all, or so many evenly

# How often, and tokens, context, whether each token has a cache of its own.
_Share = tuple[float, tuple[int, int, bool]]
_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmSettings(Config):
    """machine, set: a named machine of golden.kllm.config, and fields of it that differ.

    counter, macs, function_width, functions, integer_lanes, queue, online: of sim.kllm.units.Units
    scores, glu, fuse, share: of golden.kllm.layer.shape.LayerOptions
    scores: ``cheapest`` takes the faster of direct and index, context by context
    chunk: most tokens of a program; 0: as many as fit
    """

    machine: str = choice("table1", MACHINES)
    set: tuple[str, ...] = ()
    counter: str = "select"
    macs: int = 32
    function_width: int = 8
    functions: int = 1
    integer_lanes: int = 4
    queue: int = 4
    online: bool = True
    scores: str = choice("direct", (*SCORES, _CHEAPEST))
    glu: str = choice("index", GLU)
    fuse: bool = True
    share: float = 0.005
    chunk: int = bounded(0, 0, 256)

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
            online=self.online,
        )

    @property
    def options(self) -> tuple[LayerOptions, ...]:
        """Those that a layer may have."""
        chosen = SCORES if self.scores == _CHEAPEST else (self.scores,)
        return tuple(
            LayerOptions(fuse=self.fuse, scores=each, glu=self.glu, share=self.share)
            for each in chosen
        )

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
        "handover": ("s", "of the host, for each layer: K and V appended to their images"),
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
        "online",
        "clock",
    )
    free_fields: ClassVar[Collection[str]] = ("scores", "glu", "fuse", "share", "chunk")
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
        timings = Timings.fitted(
            latency=round(self.memory.latency * self.clock),
            command=round(self.base("command")),
            poll=round(self.base("poll")),
            word=max(1.0, wanted / self.memory.bandwidth),
        )
        self.cycles = CommandCycles(self.machine, self.settings.units, timings)
        self._room = functools.lru_cache(4096)(self._check_room)
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
        return chip_layer(model, tokens)

    def check(self, model: Model, batch: int, context: int) -> None:
        self.shape(model, context)
        # The last step of decoding has two tokens less before it: the program is used again.
        last = max(self._before(model, context - 2), 0)
        self._shares(model, 1, lambda *_: [(1.0, (1, last, True))])

    def _image_bytes(self, length: int, outputs: int) -> float:
        ports = self.machine.ports
        return self.machine.image_words(length, outputs) * ports.ports * ports.bits / 8

    def _matrices(self, shape: LayerShape) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer, fused ones together."""
        sizes = linear_sizes(shape)
        return {
            name: (sizes[members[0]][0], sum(sizes[each][1] for each in members))
            for name, members in matmuls(self.settings.fuse, shape.intermediate).items()
        }

    def weight_bytes(self, model: Model) -> float:
        matrices = self._matrices(self.shape(model)).values()
        layer = sum(self._image_bytes(inputs, outputs) for inputs, outputs in matrices)
        head = self._image_bytes(model.hidden, model.vocabulary)
        embeddings = 2.0 * model.hidden * model.vocabulary  # FP16, a row for each token
        return model.layers * layer + head + embeddings

    def kv_parts(self, model: Model, tokens: int) -> tuple[float, float]:
        """Indices with the scales of their groups, and FP16 scales of V.

        An image has whole groups of outputs of all lanes: tokens are outputs of K, and the elements
        of one head those of V.
        """
        tokens, heads = model.kept(tokens), model.layers * model.kv_heads
        k = self._image_bytes(model.head_size, tokens)
        v = self._image_bytes(tokens, model.head_size) + 2.0 * tokens
        return heads * k, heads * v

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return sum(self.kv_parts(model, tokens))

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
        return {"paper": self.base("area"), "ours": self.base("area_ours")}

    # Programs.

    @staticmethod
    def _before(model: Model, context: int) -> int:
        """Cached tokens that a token after ``context`` others attends."""
        return min(context, model.window - 1) if model.window else context

    def _shares(
        self, model: Model, most: int, shares: Callable[[int, int], Sequence[_Share]]
    ) -> Sequence[_Share]:
        """``shares`` of the most tokens of a program, up to ``most``, for which there is room.

        shares: of so many tokens of a program, at most so many programs of each kind.
        Room for some tokens, or after some context, says nothing about fewer: what is free lies in
        pieces. So each number of tokens is tried downwards, with all programs up to ``_TRIED``.
        ConfigError: there is no room for one token.
        """
        shape, refusal = self.shape(model), ""
        for tokens in range(
            max(1, min(most, self.settings.chunk or self.machine.slots // 2)), 0, -1
        ):
            made = shares(tokens, _SAMPLES)
            try:
                for _, program in reversed((*made, *shares(tokens, _TRIED))):  # the longest first
                    self._room(shape, *program)
                for _, program in made:
                    self._layer(shape, *program)
            except ConfigError as error:
                refusal = str(error)
            else:
                return made
        raise ConfigError(f"{model.name} on {self.hardware.name}: {refusal}")

    def _able(self, of: Callable[[LayerOptions], _Answer]) -> list[_Answer]:
        """Collects what ``of`` gives for the options. ConfigError: it refuses all of them."""
        found, refusal = [], ConfigError("")
        for options in self.settings.options:
            try:
                found.append(of(options))
            except ConfigError as error:
                refusal = error
        if not found:
            raise refusal
        return found

    def _check_room(self, shape: LayerShape, tokens: int, context: int, separate: bool) -> None:
        """ConfigError: there is no room for a layer's programs."""
        caches = tokens if separate else 1
        self._able(lambda o: check_room(shape, o, self.machine, tokens, context, caches))

    def _run_layer(self, shape: LayerShape, tokens: int, context: int, separate: bool) -> "_Ran":
        """A layer's programs, of the options the fastest. ConfigError: there is no room."""
        found = self._able(lambda o: self._run_options(shape, o, tokens, context, separate))
        return min(found, key=lambda each: sum(cycles for _, cycles, _, _ in each.operations))

    def _run_options(
        self, shape: LayerShape, options: LayerOptions, tokens: int, context: int, separate: bool
    ) -> "_Ran":
        caches = tokens if separate else 1
        program = layer_program(shape, options, self.machine, tokens, context, caches, chained=True)
        names = _Names(program.image)
        first = dict.fromkeys(Unit, 0)
        found: dict[str, list[float]] = {}
        lines = [timeline(words, self.cycles, first) for words in program.parts]
        for made in lines:
            _add(found, made, names, self.cycles.timings.interval)
        operations = tuple((name, *amounts) for name, amounts in found.items())
        return _Ran(operations, _loaded(program, lines))  # type: ignore[arg-type]

    def _run_head(
        self, shape: LayerShape, vocabulary: int, tokens: int
    ) -> tuple[tuple[str, float, float, float], ...]:
        words = head_program(shape, self.machine, vocabulary, tokens, self.settings.share)
        found: dict[str, list[float]] = {}
        made = timeline(words, self.cycles, dict.fromkeys(Unit, 0))
        _add(found, made, _Names({}), self.cycles.timings.interval)
        cycles, port, lanes = (sum(each[n] for each in found.values()) for n in range(3))
        return (("head", cycles, port, lanes),)

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
            made, energy=self._energy(made), extrapolated=self._outside(model, step)
        )

    def _outside(self, model: Model, step: Pass) -> tuple[str, ...]:
        """Numbers that lie outside those of the layers that the delays were fitted on."""
        longest = max((part.context for part in step.parts), default=0)
        numbers = {
            "lanes": self.machine.lanes,
            "ports": self.machine.ports.ports,
            "latency": self.cycles.timings.latency,
            "hidden": model.hidden,
            "context": longest,
        }
        known = ranges()
        found = [
            f"{name} {value}, fitted on {known[name][0]}..{known[name][1]}"
            for name, value in numbers.items()
            if name != "context" and not known[name][0] <= value <= known[name][1]
        ]
        if longest > known["context"][1]:
            found.append(f"contexts above {known['context'][1]}")
        return (f"KLLM's delays: {', '.join(found)}",) if found else ()

    def _step(self, model: Model, part: Part) -> Iterable[_Share]:
        """Shares of a batch."""
        context = self._before(model, part.context)

        def shares(tokens: int, _: int) -> Sequence[_Share]:
            whole, left = divmod(part.count, tokens)
            programs = ((whole, (tokens, context, True)), (1.0, (left, context, True)))
            return programs if left else programs[:1]

        return self._shares(model, part.count, shares)

    def _prompt(self, model: Model, part: Part) -> Iterable[_Share]:
        """Shares the ``new`` tokens of one sequence, in programs; the contexts are sampled."""

        def shares(tokens: int, samples: int) -> Sequence[_Share]:
            whole, left = divmod(part.new, tokens)
            found = [(weight, n, tokens) for weight, n in sampled(whole, samples)]
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
        handover = model.layers * self.base("handover")
        if handover:
            spent.append(Spent("hand-over", handover, {"host": handover}, {}))
        return Cost(tuple(spent))

    def _macs(self, shape: LayerShape, tokens: int, context: int, separate: bool) -> dict[str, int]:
        """Products that are added up, by operation, of one layer; the lanes select them."""
        made = {
            name: tokens * inputs * outputs
            for name, (inputs, outputs) in self._matrices(shape).items()
        }
        attended = context + (1 if separate else tokens)
        made["attention"] = 2 * tokens * attended * shape.heads * shape.head_size
        return made

    def _traffic(
        self, shape: LayerShape, tokens: int, context: int, separate: bool
    ) -> dict[str, dict[str, float]]:
        """Bytes of the memories by operation, of one layer, LOADs apart; a scale has 2."""
        made: dict[str, dict[str, float]] = {
            name: {"weights": self._image_bytes(*size)}
            for name, size in self._matrices(shape).items()
        }
        attended = context + (1 if separate else tokens)
        each = self._image_bytes(shape.head_size, attended)
        each += self._image_bytes(attended, shape.head_size)
        written = shape.kv_heads * (shape.head_size * self.machine.bits_a / 8 + 2.0)
        made["attention"] = {
            "kv_read": tokens * shape.kv_heads * each,
            "kv_written": 2.0 * tokens * written,
        }
        return made

    def _logits(self, model: Model, shape: LayerShape, words: int) -> Cost:
        chunk = max(1, min(words, self.machine.slots // 2))
        while True:
            try:
                found = self._head(shape, model.vocabulary, chunk)
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
            for name, cycles, port, lanes in found
        ]
        return Cost(tuple(spent))

    def _energy(self, cost: Cost) -> dict[str, Interval]:
        constants = self.hardware.constants
        return {
            "static": self.memory.watts * cost.seconds,
            "dram": self.memory.joules(cost.bytes),
            "sram": constants["sram_power"].interval * cost.seconds,
            "core": constants["core_power"].interval * cost.seconds,
        }


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Fields of shapes as ``lane.lanes``."""
    made: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else None
        made |= inner if inner is not None else {f"{before}{name}": value}
    return made


@dataclasses.dataclass(frozen=True)
class _Ran:
    """A layer's programs.

    operations : each with cycles, those of the ports, those of the lanes
    loaded : bytes of all LOADs, by what they are
    """

    operations: tuple[tuple[str, float, float, float], ...]
    loaded: tuple[tuple[str, float], ...]


def _loaded(program: LayerProgram, lines: Iterable[Timeline]) -> tuple[tuple[str, float], ...]:
    """Codebooks and packets count as weights, the scales of V as K and V, others as activations."""
    places = sorted((first, name) for name, (first, _) in program.place.items())
    firsts = [first for first, _ in places]
    found: dict[str, float] = {}
    for each in itertools.chain.from_iterable(line.placed for line in lines):
        if each.opcode == Opcode.LOAD:
            place = bisect.bisect_right(firsts, each.address) - 1
            name = places[place][1].rstrip("0123456789.")
            what = _LOADED.get(name.partition(".")[0], "activations")
            found[what] = found.get(what, 0.0) + float(_ROW_BYTES * each.rows)
    return tuple(found.items())


class _Names:
    """Operations of a program's commands."""

    def __init__(self, image: Mapping[str, tuple[int, int, int]]):
        self.addresses: list[tuple[int, str]] = sorted(
            (place[0], self._operation(name)) for name, place in image.items()
        )

    @staticmethod
    def _operation(image: str) -> str:
        return image if image in LINEARS or image in FUSED else "attention"

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
