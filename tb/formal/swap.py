"""Properties of QET's swap networks: parts and maps of each beat, and columns restored.

A beat of QetSwap is right if two things hold of each level, undone from the last to the first. The
smaller value of a pair is at most the larger, and below it where the map says that they were
exchanged. And what the first level gives is the columns that came in. Only one beat is right for
given columns, so these properties say every bit of it.

The invariant is the same of the register after each level.
"""

import dataclasses
import functools
import operator

from amaranth import Array, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring

from golden.config import bounded
from hdl.bits import let
from hdl.fp16.compare import total_order_key
from hdl.qet.swap import QetSwap, QetSwapConfig
from hdl.qet.unswap import QetUnswap, QetUnswapConfig
from hdl.stream.link import link
from tb.faults.plant import plant
from tb.formal.prove import Proof
from tb.formal.spec import Queue, Spec, transfer


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallSwapConfig(QetSwapConfig):
    """Words of a sign and any number of bits of magnitude."""

    bits: int = bounded(4, 1, 32, "bits of a word")

    def __post_init__(self):
        pass


class Restored(wiring.Component):
    """QetUnswap after QetSwap."""

    def __init__(self, config: QetSwapConfig, swap=QetSwap, unswap=QetUnswap):
        self.config = config
        self.swap = swap(config)
        sizes = {"levels": config.levels, "networks": config.networks, "bits": config.bits}
        self.unswap = unswap(QetUnswapConfig(**sizes))
        columns = stream.Signature(config.i_layout)
        super().__init__({"i": wiring.In(columns), "o": wiring.Out(columns)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.swap, m.submodules.unswap = self.swap, self.unswap
        link(m, wiring.flipped(self.i), self.swap.i)
        link(m, self.swap.o, self.unswap.i)
        link(m, self.unswap.o, wiring.flipped(self.o))
        return m


def order(word) -> Value:
    """The order of golden.qet.swap.keys, on its own terms."""
    return Mux(word[-1], -1 - word[:-1], word[:-1])


def all_of(conditions) -> Value:
    return functools.reduce(operator.and_, conditions, Const(1))


def undone(m: Module, name: str, levels: int, done: int, values, bits):
    """(columns, (smaller, larger, map bit) of each pair) of a network after ``done`` levels.

    The order of the values and bits is that of golden.qet.swap.swap and words_of_maps.
    """
    count = 1 << levels - done
    parts = [list(values[at : at + count]) for at in range(0, 1 << levels, count)]
    pairs = []
    for k in reversed(range(done)):
        merged = []
        for p, (small, large) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            columns = []
            for j, (s, g) in enumerate(zip(small, large, strict=True)):
                bit = bits[(k << levels >> 1) + (p << levels >> k + 1) + j]
                pairs.append((s, g, bit))
                columns += [
                    let(m, f"{name}_left_{k}_{p}_{j}", Mux(bit, g, s)),
                    let(m, f"{name}_right_{k}_{p}_{j}", Mux(bit, s, g)),
                ]
            merged.append(columns)
        parts = merged
    return parts[0], pairs


class PipelineSpec(Spec):
    """One beat out for each beat in, in order; each stage holds one, and bubbles close up."""

    swap: QetSwap

    def specify(self, m: Module) -> None:
        i, o, full = self.block.i, self.block.o, self.full
        self.source(m, i, holds=False)
        self.sink(m, o)
        self.queue = Queue(m, len(full), push=transfer(i), word=i.payload, pop=transfer(o))
        count = self.queue.count
        self.always(m, count <= len(full), "never more beats than registers")
        self.always(m, ~o.valid | (count != 0), "no beat is made up or repeated")
        self.always(m, i.ready == ((count != len(full)) | o.ready), "ready unless full")
        self.state(m, count == sum(full), "a beat in each full register")
        self.cover(m, (count == len(full)) & transfer(o), "full")
        back = Signal(range(3))
        m.d.sync += back.eq(Mux(transfer(o), Mux(back == 2, 2, back + 1), 0))
        self.cover(m, (back == 2) & transfer(o), "beats back to back")

    def source_of(self, k: int):
        """The beat that came in for what register ``k`` holds."""
        younger = sum(self.full[k + 1 :], Const(0))
        beat = Array(self.queue.slots)[younger] if k + 1 < len(self.full) else self.queue.slots[0]
        return self.swap.config.i_layout(Value.cast(beat))

    def check_register(self, m: Module, k: int) -> None:
        """The register after level k of the swap network."""
        config, swap, beat = self.swap.config, self.swap, self.source_of(k)
        held, is_last = swap.held[k], k + 1 == len(swap.held)
        done = min(k + 1, config.levels)
        right = [held.last == beat.last]
        for n in range(config.networks):
            values = [Value.cast(word) for word in held.word[n]]
            wanted = [Value.cast(word) for word in beat.word[n]]
            if not is_last:
                wanted = [total_order_key(word) for word in wanted]
            bits = held.map[n] if config.levels else Const(0, 0)
            columns, pairs = undone(m, f"of_{k}_{n}", config.levels, done, values, bits)
            right += [each == want for each, want in zip(columns, wanted, strict=True)]
            if self.is_ordered:
                right += [self.in_order(*pair, order if is_last else Value.cast) for pair in pairs]
        self.state(m, ~swap.full[k] | all_of(right), f"register {k} has its beat")

    is_ordered = True

    @staticmethod
    def in_order(small, large, bit, key) -> Value:
        return Mux(bit, key(small) < key(large), key(small) <= key(large))


class SwapSpec(PipelineSpec):
    """Parts and maps of each beat."""

    def __init__(self, block: QetSwap):
        super().__init__(block)
        self.swap, self.full = block, block.full

    def specify(self, m):
        super().specify(m)
        o, config = self.block.o, self.block.config
        beat = config.i_layout(Value.cast(self.queue.slots[0]))
        self.always(m, ~o.valid | (o.p.last == beat.last), "last of its beat")
        for n in range(config.networks):
            values = [Value.cast(word) for word in o.p.word[n]]
            bits = o.p.map[n] if config.levels else Const(0, 0)
            columns, pairs = undone(m, f"o_{n}", config.levels, config.levels, values, bits)
            same = all_of(
                each == Value.cast(word) for each, word in zip(columns, beat.word[n], strict=True)
            )
            self.always(m, ~o.valid | same, f"network {n}: the maps lead back to the columns")
            sorted_pairs = all_of(self.in_order(*pair, order) for pair in pairs)
            self.always(m, ~o.valid | sorted_pairs, f"network {n}: pairs in order, equal ones stay")
            if config.levels:
                self.cover(m, o.valid & bits[0] & bits[-1], f"network {n}: exchanges")
        for k in range(len(self.full) - 1):  # o shows what the last one holds
            self.check_register(m, k)


class RestoredSpec(PipelineSpec):
    """The columns that came in, whatever their order, equal values included."""

    is_ordered = False

    def __init__(self, block: Restored):
        super().__init__(block)
        self.swap = block.swap
        self.full = [*block.swap.full, block.unswap.o.valid]

    def specify(self, m):
        super().specify(m)
        o, slots = self.block.o, self.queue.slots
        same = Value.cast(o.payload) == slots[0]
        self.always(m, ~o.valid | same, "the same columns, and last")
        words = [Value.cast(word) for word in o.p.word[0]]
        equal = all_of(word == words[0] for word in words)
        self.cover(m, o.valid & equal & (words[0] == 1), "all values of a network are equal")
        for k in range(len(self.swap.full)):
            self.check_register(m, k)


class UnswapSpec(PipelineSpec):
    """Each level of any maps undone, on any values."""

    def __init__(self, block: QetUnswap):
        super().__init__(block)
        self.full = [block.o.valid]

    def specify(self, m):
        super().specify(m)
        o, config = self.block.o, self.block.config
        beat = config.i_layout(Value.cast(self.queue.slots[0]))
        self.always(m, ~o.valid | (o.p.last == beat.last), "last of its beat")
        for n in range(config.networks):
            values = [Value.cast(word) for word in beat.word[n]]
            bits = beat.map[n] if config.levels else Const(0, 0)
            columns, _ = undone(m, f"of_{n}", config.levels, config.levels, values, bits)
            same = all_of(
                each == Value.cast(word) for each, word in zip(columns, o.p.word[n], strict=True)
            )
            self.always(m, ~o.valid | same, f"network {n}: its columns")


def _config(levels: int, networks: int, bits: int) -> SmallSwapConfig:
    return SmallSwapConfig(levels=levels, networks=networks, bits=bits)


def _swap(*sizes: int, block=QetSwap) -> Spec:
    return SwapSpec(block(_config(*sizes)))


def _restored(*sizes: int, **blocks) -> Spec:
    return RestoredSpec(Restored(_config(*sizes), **blocks))


def _unswap(levels: int, networks: int, bits: int, block=QetUnswap) -> Spec:
    return UnswapSpec(block(QetUnswapConfig(levels=levels, networks=networks, bits=bits)))


def _proofs() -> list[Proof]:
    proofs = []

    def add(name, spec, sizes, long=False):
        levels = sizes[0]
        proofs.append(
            Proof(
                f"{name}-{'-'.join(map(str, sizes))}",
                functools.partial(spec, *sizes),
                2,
                cover_depth=levels + 7,
                long=long,
            )
        )

    # A word of one bit is -0 or +0. One of two bits has a magnitude of 0 or 1.
    for sizes in ((0, 1, 4), (1, 1, 4), (2, 1, 3), (2, 2, 2), (3, 1, 2), (4, 1, 2), (5, 1, 1)):
        add("Swap", _swap, sizes)
        add("Restored", _restored, sizes)
    for sizes in ((0, 1, 2), (1, 2, 3), (2, 2, 2), (3, 1, 2), (4, 1, 1), (5, 1, 1)):
        add("Unswap", _unswap, sizes)
    for name, spec in ("Swap", _swap), ("Restored", _restored):
        add(name, spec, (5, 1, 2), long=True)
    return proofs


PROOFS = _proofs()

_ABOVE = "left > right"
_ZEROS = "left[-1] & ~left[:-1].any() & ~right[-1] & right[:-1].all()"  # keys of +0 and -0


def _defect(name: str, spec, meaning: str) -> Proof:
    return Proof(f"defect-{name}", functools.partial(spec, 2, 1, 3), 8, meaning)


def _swap_defect(name: str, old: str, new: str, meaning: str) -> Proof:
    block = plant(QetSwap, "_placed", old, new)
    return _defect(f"swap-{name}", functools.partial(_swap, block=block), meaning)


_INVERTED = plant(QetSwap, "elaborate", "Cat(maps[n], exchanged)", "Cat(maps[n], ~exchanged)")
_FIRST = plant(QetUnswap, "_columns", "reversed(range(levels))", "range(levels)")
_ONE_BIT = plant(QetUnswap, "_columns", "maps[k * pairs + pair]", "maps[k * pairs]")

DEFECTS = [
    _swap_defect("ties", _ABOVE, "left >= right", "equal values are exchanged"),
    _swap_defect("sign", _ABOVE, "left[:-1] > right[:-1]", "compares without the sign"),
    _swap_defect("zeros", _ABOVE, f"({_ABOVE}) & ~({_ZEROS})", "-0 equals +0"),
    _swap_defect("parts", "small, large =", "large, small =", "the larger value goes to S"),
    _defect("restored-map", functools.partial(_restored, swap=_INVERTED), "an inverted map"),
    _defect("restored-levels", functools.partial(_restored, unswap=_FIRST), "first level first"),
    _defect("unswap-bit", functools.partial(_unswap, block=_ONE_BIT), "one bit for a level"),
]
