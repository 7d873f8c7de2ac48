"""A GPU: rooflines of kernels, the start of each kernel, and the host that launches them.

An operation takes as long as the longer of two:

- the device: the start of its kernels, then the slowest of arithmetic and memory;
- the host: the launches of its kernels, where no captured graph replaces them.

A matrix multiplication is cut into tiles, and all processors work on one wave of tiles at a time.
The library is assumed to choose the best tile of TILES. A tile of a x b outputs reaches

    tile_efficiency * r / (r + tile_half)   with r = a * b / (a + b)

of the peak, as larger tiles use each operand more often. Weights that are narrower or wider than
activations are expanded first: ``dequantize`` of them per second, which nothing hides.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from golden.config import Config, ConfigError, bounded, choice, flag
from sim.constant import Interval
from sim.cost import Cost, Spent, Totals
from sim.engine import Engine, check_words
from sim.hardware import Hardware
from sim.model import Model
from sim.work import (
    ATTENTION,
    LINEAR,
    Part,
    Pass,
    Shape,
    Work,
    attention_macs,
    cached_tokens,
    works,
)

# Rows and columns of the outputs that one processor computes at a time.
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64),
    (32, 128), (32, 64), (16, 128), (16, 64),
)  # fmt: skip

# Parts into which the inputs of a matrix may be cut, each a tile of its own.
SPLITS = (1, 2, 4)

# Kernels of one execution of an operation, by what is fused; 1 where an operation is not named.
KERNELS: dict[str, dict[str, int]] = {
    # Each operation of the framework by itself: a norm casts, squares, averages, adds, takes the
    # root, multiplies, casts and multiplies; a rotation negates, joins, multiplies and adds twice.
    "none": {
        "norm": 8, "final norm": 8, "qkv": 3, "rotary": 12, "attention": 5, "gate_up": 2,
        "activation": 2, "head": 2, "router": 8,
    },
    "kernels": {"attention": 2, "router": 3},
    "residual": {"attention": 2, "router": 3, "residual": 0},
}  # fmt: skip

_FP16 = 2.0  # bytes
_MOST_SUMS = 1 << 14  # numbers of tokens, and of words, whose sums are kept at a time
_Joules = tuple[float, float, float]  # lowest, used, highest


class _Sums(NamedTuple):
    """Operations in order: seconds, bytes, and seconds in which a kernel works; sums of each.

    rows : the three of each operation
    """

    seconds: list[float]
    bytes: list[float]
    rows: list[tuple[float, float, float]]
    total: tuple[float, float, float]

    @classmethod
    def of(cls, made: Sequence[Spent]) -> "_Sums":
        rows = [
            (each.seconds, float(sum(each.traffic.values())), _working(each)) for each in made
        ]
        time = total = busy = 0.0
        for seconds, amount, working in rows:
            time, total, busy = time + seconds, total + amount, busy + working
        return cls([row[0] for row in rows], [row[1] for row in rows], rows, (time, total, busy))


class _Known:
    """Sums of one model that ``totals`` has found.

    sizes : bytes of an element of the cache, tokens of it in FP16, elements of attention; None: the
    sums of ``totals`` do not hold for the model
    tokens, words : sums of the operations that depend on them, by their number
    """

    def __init__(self, model: Model, sizes: tuple[float, int, int, int] | None):
        self.model, self.sizes = model, sizes
        self.tokens: dict[int, tuple[_Sums, _Sums]] = {}
        self.words: dict[int, _Sums] = {}


def _working(spent: Spent) -> float:
    """Seconds in which a kernel does not wait for the host."""
    return max((value for name, value in spent.limits.items() if name != "host"), default=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuSettings(Config):
    """The formats and kernels of what runs on the GPU.

    weight_bits, activation_bits, kv_bits, head_bits : of an element; the head is the last matrix
    weight_group, kv_group : elements that share a scale, 0: a whole column of a matrix, a whole
    vector of a head
    weight_scale, kv_scale : bits of a scale, its zero point included
    kv_outliers : of 1000 elements of the cache, those that are kept apart in ``kv_outlier_bits``
    kv_recent : latest tokens of a sequence whose K and V stay in FP16
    fusion : ``none``, ``kernels`` (one for each operation), ``residual`` (the sums too)
    graph : a captured graph launches the kernels, so the host limits nothing
    concatenate : a pass copies the cache to append to it
    scores : prefill writes the scores of all pairs to memory, in FP16 and in FP32
    attention_rows : queries of a sequence and a head that a tile of attention has. The last tile of
    each sequence is computed whole. A pass of one token of each sequence has no such tiles: there
    the heads that share K and V fill a tile
    """

    weight_bits: int = bounded(16, 1, 16)
    weight_group: int = bounded(0, 0, 1 << 20)
    weight_scale: int = bounded(16, 0, 64)
    activation_bits: int = choice(16, (4, 8, 16))
    head_bits: int = bounded(16, 1, 16)
    kv_bits: int = bounded(16, 1, 16)
    kv_group: int = bounded(0, 0, 1 << 20)
    kv_scale: int = bounded(16, 0, 64)
    kv_outliers: int = bounded(0, 0, 1000)
    kv_outlier_bits: int = bounded(32, 0, 64)
    kv_recent: int = bounded(0, 0, 1 << 20)
    fusion: str = choice("residual", KERNELS)
    graph: bool = flag(True)
    concatenate: bool = flag(False)
    scores: bool = flag(False)
    attention_rows: int = bounded(1, 1, 1 << 10)


class Gpu(Engine):
    """A GPU and the programs that run on it."""

    name: ClassVar[str] = "gpu"
    Settings: ClassVar[type[Config]] = GpuSettings
    constants: ClassVar[Mapping[str, tuple[str, str]]] = {
        "peak_16": ("TFLOPS", "of products of FP16 in the matrix units, a sum is an operation"),
        "peak_8": ("TOPS", "of products of 8-bit integers"),
        "peak_4": ("TOPS", "of products of 4-bit integers"),
        "processors": ("", "that compute a tile each"),
        "tile_efficiency": ("", "share of the peak that the largest tile would reach"),
        "tile_half": ("", "size of a tile, a * b / (a + b), that reaches half of that"),
        "matrix_start": ("us", "of a kernel that multiplies matrices, before and after its work"),
        "vector_start": ("us", "of any other kernel"),
        "vector_efficiency": ("", "share of the memory's bandwidth that other kernels reach"),
        "attention_efficiency": ("", "share of the peak that attention over a prompt reaches"),
        "attention_bandwidth": ("", "share of the memory's bandwidth at which the cache is read"),
        "dequantize": ("TOPS", "weights that are expanded, per second"),
        "kv_dequantize": ("TOPS", "elements of a quantized cache that are expanded, per second"),
        "launch": ("us", "of the host, to launch a kernel"),
        "quantize_host": ("us", "of the host and a layer, to quantize new K and V by themselves"),
        "attention_host": ("us", "of the host and a layer, in attention, besides its launches"),
        "idle": ("W", "of the whole board, waiting"),
        "busy": ("W", "of the whole board, working"),
        "area": ("mm2", "of the die; 0: unknown"),
        "on_chip": ("B", "registers and caches of both levels; 0: unknown"),
    }  # fmt: skip
    chip_fields: ClassVar[Collection[str]] = ("peak_16", "peak_8", "peak_4", "processors")
    # Settings say what runs on the GPU.
    free_fields: ClassVar[Collection[str]] = tuple(
        field.name for field in dataclasses.fields(GpuSettings)
    )
    energies: ClassVar[Collection[str]] = ("idle", "busy")
    areas: ClassVar[Mapping[str, Collection[str]]] = {"paper": ("area",)}
    divisors: ClassVar[Collection[str]] = (
        "peak_16",
        "peak_8",
        "peak_4",
        "processors",
        "tile_efficiency",
        "vector_efficiency",
        "attention_efficiency",
        "attention_bandwidth",
        "dequantize",
        "kv_dequantize",
    )

    def __init__(self, hardware: Hardware):
        super().__init__(hardware)
        use: GpuSettings = self.settings
        base = self.base
        peak = base(f"peak_{use.activation_bits}")
        self._processors = base("processors")
        # Seconds of one wave for each element of the inputs.
        self._tiles = [
            (a, b, 2 * a * b * self._processors / (peak * self._tile_share(a, b))) for a, b in TILES
        ]
        self._bandwidth = self.memory.bandwidth
        self._vector_bandwidth = self._bandwidth * base("vector_efficiency")
        self._cache_bandwidth = self.memory.peak * base("attention_bandwidth")
        self._attention_peak = base("peak_16") * base("attention_efficiency")
        self._matrix_start, self._vector_start = base("matrix_start"), base("vector_start")
        self._dequantize, self._kv_dequantize = base("dequantize"), base("kv_dequantize")
        self._launch = 0.0 if use.graph else base("launch")
        self._quantize_host = 0.0 if use.graph or use.kv_bits == 16 else base("quantize_host")
        self._attention_host = 0.0 if use.graph else base("attention_host")
        self._kernels = KERNELS[use.fusion]
        self._tile = use.attention_rows
        idle, busy = (hardware.constants[name].interval for name in ("idle", "busy"))
        self._idle, self._busy = idle, busy
        self._byte = self.memory.constants["energy"].interval
        self._operation = functools.lru_cache(maxsize=1 << 14)(self.operation)
        self._latest: _Known | None = None

    @property
    def area(self) -> Mapping[str, float]:
        return {"paper": self.base("area")} if self.base("area") else {}

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        return {"registers and caches": self.base("on_chip")} if self.base("on_chip") else {}

    def _tile_share(self, a: int, b: int) -> float:
        size = a * b / (a + b)
        return self.base("tile_efficiency") * size / (size + self.base("tile_half"))

    def _matrix(self, inputs: float, outputs: float, bits: int) -> float:
        """Bytes of a matrix as it is stored."""
        use: GpuSettings = self.settings
        made = inputs * outputs * bits / 8
        if bits < 16:
            groups = math.ceil(inputs / use.weight_group) if use.weight_group else 1
            made += outputs * groups * use.weight_scale / 8
        return made

    def _element(self, model: Model) -> float:
        """Bytes of an element of a quantized cache, with its share of scales and outliers."""
        use: GpuSettings = self.settings
        if use.kv_bits == 16:
            return _FP16
        scales = use.kv_scale / (use.kv_group or model.kv_vector)
        return (use.kv_bits + scales + use.kv_outliers / 1000 * use.kv_outlier_bits) / 8

    def weight_bytes(self, model: Model) -> float:
        use: GpuSettings = self.settings
        layers = model.stored(lambda a, b: self._matrix(a, b, use.weight_bits))
        if model.routed:
            layers += model.routed * self._matrix(*model.router_size, use.weight_bits)
        table = model.vocabulary * model.hidden * _FP16
        head = 0.0 if model.tied else self._matrix(model.hidden, model.vocabulary, use.head_bits)
        return layers + table + head

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return sum(self._kv_bytes(each, tokens) for each in model.alike)

    def _kv_bytes(self, model: Model, tokens: int) -> float:
        """Those of layers that attend alike."""
        use: GpuSettings = self.settings
        kept = model.kept(tokens)
        recent = min(kept, use.kv_recent)
        each = (kept - recent) * self._element(model) + recent * _FP16
        return model.kv_elements * each

    def check(self, model: Model, batch: int, context: int) -> None:
        use: GpuSettings = self.settings
        check_words(self.hardware.name, model, use.kv_bits)
        if use.scores:
            pairs = batch * model.heads * context * context * (_FP16 + 4.0)
            missing = self.weight_bytes(model) + pairs - self.memory.capacity
            if missing > 0:
                raise ConfigError(
                    f"{model.name}: the scores of a prompt of {context} tokens at batch {batch} "
                    f"lack {missing / 1e9:.2f} GB of {self.memory.capacity / 1e9:.0f} GB on "
                    f"{self.hardware.name}"
                )

    def matrix_seconds(self, rows: int, inputs: int, outputs: int, copies: int = 1) -> float:
        """Arithmetic of ``rows`` tokens that are spread over ``copies`` matrices."""
        each = -(-rows // copies)
        least = math.inf
        for a, b, wave in self._tiles:
            tiles = copies * -(-each // a) * -(-outputs // b)
            for parts in SPLITS:
                seconds = math.ceil(parts * tiles / self._processors) * wave / parts * inputs
                if parts > 1:  # each part writes sums in FP32, and they are read again
                    seconds += 8.0 * parts * rows * outputs / self._bandwidth
                least = min(least, seconds)
        return least

    def _kernels_of(self, work: Work) -> int:
        """A place before the name, as in ``shared down``, changes nothing."""
        names = work.name, work.name.rpartition(" ")[2]
        return next((self._kernels[name] for name in names if name in self._kernels), 1)

    def _linear(self, work: Work) -> Spent:
        use: GpuSettings = self.settings
        copies = work.weights // (work.inputs * work.outputs)
        head = work.name == "head"
        bits = use.head_bits if head else use.weight_bits
        weights = copies * self._matrix(work.inputs, work.outputs, bits)
        # The head's activations stay in FP16 where its weights do.
        plain = head and bits == 16
        moved = work.vectors * (_FP16 if plain else min(use.activation_bits, 16) / 8)
        expanded = 0.0 if plain or bits == use.activation_bits else work.weights / self._dequantize
        limits = {
            "compute": self.matrix_seconds(work.rows, work.inputs, work.outputs, copies),
            "memory": (weights + moved) / self._bandwidth,
        }
        traffic = {"weights": weights, "activations": moved}
        kernels = self._kernels_of(work)
        if use.activation_bits < 16 and use.fusion == "none":
            kernels += 1  # that quantizes the inputs
        return self._spent(work, limits, traffic, kernels * self._matrix_start + expanded, kernels)

    def _attention(self, work: Work, step: Pass, model: Model) -> Spent:
        use: GpuSettings = self.settings
        size = self._element(model)
        recent = 0
        if use.kv_recent and size < _FP16:
            recent = model.kv_layer * sum(
                p.count * min(cached_tokens(model, p.context), use.kv_recent) for p in step.parts
            )
        macs = work.macs
        if self._tile > 1 and max(p.new for p in step.parts) > 1:
            macs = sum(self._rows(p.new, attention_macs(model, p)) for p in step.parts)
        compute, memory, read, written, moved = self._attended(
            size, macs, work.kv_read, recent, work.kv_written, work.vectors
        )
        limits = {"compute": compute, "memory": memory}
        traffic = {"kv_read": read, "kv_written": written, "activations": moved}
        kernels = self._kernels_of(work)
        if self._attention_host:
            limits["host"] = self._attention_host
        return self._spent(work, limits, traffic, kernels * self._vector_start, kernels)

    def _rows(self, new: int, macs: int) -> int:
        """Multiplications of whole tiles, of ``macs`` of a sequence with ``new`` tokens."""
        rows = self._tile
        return -(-new // rows) * rows * macs // new

    def _attended(
        self, size: float, macs: int, cached: int, recent: int, new: int, vectors: int
    ) -> tuple[float, float, float, float, float]:
        """Seconds of arithmetic and of memory; bytes of the cache read and written, and others.

        Of one layer. cached, recent, new, vectors: elements; size: bytes of one in the cache.
        """
        use: GpuSettings = self.settings
        old = cached - recent
        read = old * size + recent * _FP16
        written = new * size
        copied = read + written if use.concatenate else 0.0
        moved = vectors * _FP16
        memory = (read + written + 2 * copied) / self._cache_bandwidth + moved / self._bandwidth
        memory += old / self._kv_dequantize if use.kv_bits < 16 else 0.0
        return 2 * macs / self._attention_peak, memory, read + copied, written + copied, moved

    def _vector(self, work: Work) -> Spent:
        moved = work.vectors * _FP16
        kernels = self._kernels_of(work)
        limits = {"memory": moved / self._vector_bandwidth}
        return self._spent(
            work, limits, {"activations": moved}, kernels * self._vector_start, kernels
        )

    def _spent(
        self,
        work: Work,
        limits: dict[str, float],
        traffic: Mapping[str, float],
        start: float,
        kernels: int,
    ) -> Spent:
        """limits, traffic, start: of one execution on the device."""
        host = limits.pop("host", 0.0) + kernels * self._launch
        device = max(start + max(limits.values()), host)
        if host:
            limits["host"] = host
        count = work.count
        return Spent(
            work.name,
            count * device,
            {name: count * seconds for name, seconds in limits.items()},
            {name: count * amount for name, amount in traffic.items()},
            float(count * work.macs),
        )

    def operation(self, work: Work) -> Spent:
        """Any operation but attention."""
        return self._linear(work) if work.kind == LINEAR else self._vector(work)

    def cost(self, model: Model, step: Pass) -> Cost:
        check_words(self.hardware.name, model, self.settings.kv_bits)
        made: list[Spent] = []
        alike = iter(model.alike)
        for work in works(model, step):
            if work.kind == ATTENTION:
                if self._quantize_host:
                    seconds = work.count * self._quantize_host
                    made.append(Spent("quantize", seconds, {"host": seconds}, {}))
                made.append(self._attention(work, step, next(alike)))
            else:
                # The same work takes the same time, and many passes have as many tokens.
                made.append(self._operation(work))
        return Cost(tuple(made), self._energy(made))

    def _energy(self, made: list[Spent]) -> dict[str, Interval]:
        """The board's power: idle throughout, busy while a kernel does not wait for the host."""
        seconds = busy = moved = 0.0
        for each in made:
            seconds += each.seconds
            busy += _working(each)
            moved += sum(each.traffic.values())
        static, dram, core = (Interval(*each) for each in self._board(seconds, busy, moved))
        return {"static": static, "dram": dram, "sram": Interval.of(0.0), "core": core}

    def _board(self, seconds: float, busy: float, moved: float) -> tuple[_Joules, _Joules, _Joules]:
        """Joules of the idle board, of the memory, and of all else."""
        idle, top, byte = self._idle, self._busy, self._byte
        dram = byte.value * moved
        return (
            (idle.low * seconds, idle.value * seconds, idle.high * seconds),
            (byte.low * moved, dram, byte.high * moved),
            (
                max((top.low - idle.high) * busy - dram, 0.0),
                max((top.value - idle.value) * busy - dram, 0.0),
                max((top.high - idle.low) * busy - dram, 0.0),
            ),
        )

    def _others(self, model: Model, tokens: int, words: int) -> list[Spent | None]:
        """All operations of a pass; None in the place of attention."""
        step = Pass((Part(count=tokens, new=1, context=0),), words)
        return [
            None if work.kind == ATTENTION else self._operation(work) for work in works(model, step)
        ]

    def _by_tokens(self, model: Model, tokens: int) -> tuple[_Sums, _Sums]:
        """The operations before attention, and those after it that depend on the tokens."""
        found = self._others(model, tokens, 1)
        place = found.index(None)
        end = len(found) - len(self._last(model, 1))
        before, after = found[:place], found[place + 1 : end]
        return _Sums.of([each for each in before if each]), _Sums.of(
            [each for each in after if each]
        )

    def _last(self, model: Model, words: int) -> list[Spent]:
        """The operations that depend on the words: they are the last ones."""
        found = [each for each in self._others(model, 1, words) if each]
        place = next(n for n, each in enumerate(found) if each.name == "final norm")
        return found[place:]

    def _by_words(self, model: Model, words: int) -> _Sums:
        return _Sums.of(self._last(model, words))

    def _known(self, model: Model) -> _Known:
        """The sums of the latest model. A model's hash takes long, so it is found by identity."""
        use: GpuSettings = self.settings
        sizes = None
        if not (model.kv_rank or model.window or model.chunk or self._quantize_host):
            size = self._element(model)
            both = model.heads * (model.head_size + model.value)
            sizes = size, use.kv_recent if size < _FP16 else 0, model.kv_layer, both
        self._latest = _Known(model, sizes)
        return self._latest

    def totals(self, model: Model, parts: Sequence[Shape], words: int) -> Totals:
        known = self._latest
        if known is None or known.model is not model:
            known = self._known(model)
        if known.sizes is None:
            return super().totals(model, parts, words)
        size, most, each, both = known.sizes
        tokens = cached = macs = recent = 0
        tiled = self._tile > 1 and max(new for _, new, _ in parts) > 1
        for count, new, context in parts:
            tokens += count * new
            cached += count * context
            own = count * (new * context + new * (new + 1) // 2) * both
            macs += self._rows(new, own) if tiled else own
            if most:
                recent += count * min(context, most)
        compute, memory, read, written, moved = self._attended(
            size, macs, cached * each, recent * each, tokens * each, tokens * both
        )
        kernels, layers = self._kernels.get("attention", 1), model.layers
        host = self._attention_host + kernels * self._launch
        start = kernels * self._vector_start
        seconds = layers * max(start + max(compute, memory), host)
        working = max(layers * compute, layers * memory)
        traffic = layers * read + layers * written + layers * moved
        found = known.tokens.get(tokens)
        if found is None:
            if len(known.tokens) >= _MOST_SUMS:
                known.tokens.clear()
            found = known.tokens[tokens] = self._by_tokens(model, tokens)
        last = known.words.get(words)
        if last is None:
            if len(known.words) >= _MOST_SUMS:
                known.words.clear()
            last = known.words[words] = self._by_words(model, words)
        before, after = found
        time, total, busy = before.total
        time, total, busy = time + seconds, total + traffic, busy + working
        for group in (after.rows, last.rows):
            for spent, amount, working_ in group:
                time += spent
                total += amount
                busy += working_
        static, dram, core = self._board(time, busy, total)
        energy = (
            static[0] + dram[0] + core[0],
            static[1] + dram[1] + core[1],
            static[2] + dram[2] + core[2],
        )
        # ``sum`` as in Cost, which may round otherwise than a loop.
        return Totals(
            sum([*before.seconds, seconds, *after.seconds, *last.seconds]),
            sum([*before.bytes, traffic, *after.bytes, *last.bytes]),
            energy,
        )
