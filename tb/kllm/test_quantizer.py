"""KllmQuantizer against golden.kllm.quantizer: programs of its commands, faults, rates.

Shown to fail:

- ties that ignore positions;
- elements after the length taken as outliers;
- a threshold of -0 above +0;
- a descriptor before its entries;
- kinds of tokens that overlap;
- a status or a fault that stays for what follows;
- a refused codebook that counts as loaded;
- a missing one noticed at the last token only;
- one outlier more than fit;
- a maximum kept from the token before;
- the offset of the last token cut to 16 bits.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import tb.simulate.run
from golden.index.format import K_MAX
from golden.index.nearest import midpoints
from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.format import activation_entry_bits
from golden.kllm.isa import (
    FIRST_OPERAND_WORD,
    ROW_ELEMENTS,
    CommandStatus,
    Norm,
    Opcode,
    OutlierMode,
    Outliers,
    Statistics,
    encode,
)
from golden.kllm.quantizer import (
    codebook_fault,
    faults,
    quantize_command,
    quantize_integer_command,
)
from golden.words import join
from hdl.kllm.quantize.quantizer import KllmQuantizer, KllmQuantizerConfig

INF, NAN, ONE = 0x7C00, 0x7E00, 0x3C00
EPSILON = int(np.float32(1e-5).view(np.uint32))
CONFIGS = {
    "small": KllmQuantizerConfig(
        vectors=VectorShape(rows=200), integer_lanes=16,
        slot=SlotShape(slots=9, elements=200, outliers_max=7, bits_a=3, integer_bits=4),
    ),
    "parallel": KllmQuantizerConfig(
        vectors=VectorShape(rows=64), orizuru="parallel",
        slot=SlotShape(slots=4, elements=40, outliers_max=20, bits_a=2, integer_bits=0),
    ),
    "default": KllmQuantizerConfig(),
}  # fmt: skip
CONFIGS |= {
    f"{name}_in_{parts}_parts": dataclasses.replace(  # of few gates
        CONFIGS[name], clustering_parts=parts, integer_lanes=1, threshold_multipliers=1,
        orizuru="shared", orizuru_stages=2,
    )
    for name, parts in (("small", 16), ("parallel", 4))
}


def random_codebook(rng, entries) -> np.ndarray:
    """Ascending words in -1..1, both ends included."""
    inner = rng.uniform(-1, 1, entries - 2) * rng.choice([1, 0.25, 2.0**-9], entries - 2)
    values = np.sort(np.concatenate([[-1, 1], inner])).astype(np.float16)
    return values.view(np.uint16).astype(np.int64)


STYLES = ("normal", "large", "few", "constant", "near", "zeros", "subnormal", "positive")


def random_rows(rng, style: str, rows: int) -> np.ndarray:
    """(rows, 16) finite FP16 words."""
    shape = (rows, ROW_ELEMENTS)
    sign = rng.integers(0, 2, shape) << 15
    if style in ("normal", "positive"):
        values = rng.normal(size=shape) * np.exp(rng.normal(size=shape))
        values = np.abs(values) * 2.0 ** -rng.integers(0, 9) if style == "positive" else values
        return values.astype(np.float16).view(np.uint16).astype(np.int64)
    if style == "few":
        return rng.choice([0x3C00, 0xBC00, 0x3C01, 0x0000, 0x8000, 0x4500, 0xC500], shape)
    if style == "constant":
        return np.full(shape, rng.integers(0, INF) | rng.integers(0, 2) << 15)
    if style == "near":  # within 4 units in the last place of one another, so of a threshold too
        return rng.integers(0, INF - 4) + rng.integers(0, 5, shape) | rng.integers(0, 2) << 15
    most = {"large": INF, "zeros": 1, "subnormal": 0x0403}[style]
    return rng.integers(0, most, shape) | sign


@dataclasses.dataclass
class Maker:
    """Builds one program: commands, and every word that must come of them."""

    config: KllmQuantizerConfig
    rows: np.ndarray  # (rows, 16) words of the vector memory
    codebook: np.ndarray | None = None
    middles: np.ndarray | None = None

    def __post_init__(self):
        self.commands: list[int] = []
        self.expected = {name: [] for name in ("entries", "outlier", "descriptor", "status")}
        self.before = {"descriptor": [], "status": []}
        self.work = self.reads = 0
        # V answers after 6 cycles at most.
        self.cycles = dataclasses.replace(self.config.cycles, answer=6)
        self.seen = CommandStatus(0)

    def program(self, kind: str, **more) -> dict:
        return {
            "kind": kind,
            "rows": [join(*((word, 16) for word in row)) for row in self.rows],
            "commands": self.commands,
            **self.expected,
            **{f"before_{name}": words for name, words in self.before.items()},
            "work": self.work,  # cycles of the commands one after another, at most
            "reads": self.reads,  # requests and answers of rows, at most
            **more,
        }

    def raw(self, opcode: int, operands: dict | None = None) -> None:
        words = [0] * 12
        if operands is not None:
            words = encode(Opcode(opcode), 0, {}, operands)[FIRST_OPERAND_WORD:]
        self.commands.append(join((opcode, 8), *((word, 32) for word in words)))

    def status(self, status: CommandStatus) -> None:
        self.seen |= status
        self.before["status"].append({"descriptor": len(self.expected["descriptor"])})
        self.expected["status"].append((-1, int(status)))

    def faults(self, opcode: Opcode, operands: dict) -> CommandStatus:
        config = self.config
        return faults(
            opcode, operands, vector_rows=config.vectors.rows, slots=config.slot.slots,
            slot_elements=config.slot.elements,
        )  # fmt: skip

    def unknown(self, opcode: int) -> None:
        self.raw(opcode)
        self.work += self.cycles.refused()
        self.status(CommandStatus.MALFORMED)

    def load(self, src: int) -> None:
        """ACTIVATION_CODEBOOK."""
        operands = {"src": src}
        self.raw(Opcode.ACTIVATION_CODEBOOK, operands)
        status = self.faults(Opcode.ACTIVATION_CODEBOOK, operands)
        if not status:
            entries = self.config.centroids
            self.codebook = self.rows[src, :entries]
            self.middles = self.rows[src + 1, : entries - 1]
            status = codebook_fault(torch.tensor(self.codebook), torch.tensor(self.middles))
            if status:
                self.codebook = None
        self.work += self.cycles.codebook()
        self.reads += 4
        self.status(status)

    def tokens(self, operands: dict) -> torch.Tensor:
        length, count = operands["length"], -(-operands["length"] // ROW_ELEMENTS)
        self.reads += 4 * operands["tokens"] * count
        first = [operands["src"] + t * operands["stride"] for t in range(operands["tokens"])]
        return torch.tensor(
            np.array([self.rows[row : row + count].reshape(-1)[:length] for row in first])
        )

    def quantize(self, **given) -> None:
        operands = {
            "src": 2, "stride": 0, "tokens": 1, "length": 16, "slot": 0, "k_max": 0, "k_min": 0,
            "mode": OutlierMode.ONLINE, "thresholds": 0, "norm": Norm.NONE, "epsilon": EPSILON,
        } | given  # fmt: skip
        self.raw(Opcode.QUANTIZE, operands)
        status = self.faults(Opcode.QUANTIZE, operands)
        self.work += self.cycles.refused(operands["tokens"])
        if status:
            self.status(status)
            return
        x = self.tokens(operands)
        if self.codebook is None:
            self.work += self.most(operands, 0)  # the first pass is made
            self.status(CommandStatus.CODEBOOK_MISSING)
            return
        upper, lower = operands["thresholds"] >> 16, operands["thresholds"] & 0xFFFF
        most = self.config.slot.outliers_max
        outliers = Outliers(operands["k_max"], operands["k_min"], operands["mode"], upper, lower)
        result = quantize_command(
            x, torch.tensor(self.codebook), outliers, most,
            Statistics(operands["norm"], operands["epsilon"]), torch.tensor(self.middles),
        )  # fmt: skip
        # Of a failed token: is there a second pass, and how many outliers does it store?
        nan = ((x & 0x7FFF) > INF).any(dim=1).tolist()
        if operands["mode"] == OutlierMode.ONLINE:
            k = operands["k_max"] + operands["k_min"]
            stored = [None if k > most or bad else k for bad in nan]
            self.work += 0 if k > most else self.most(operands, k)
        else:
            value = x.to(torch.int32).numpy().astype(np.uint16).view(np.float16)
            bounds = np.array([upper, lower], dtype=np.uint16).view(np.float16)
            count = ((value > bounds[0]) | (value < bounds[1])).sum(axis=1)
            stored = [min(int(n), most) for n in count]
            self.work += self.most(operands, int(count.max()))
        self._slots(operands, result, stored, integer=False)

    def most(self, operands: dict, outliers: int, spread=None, answer=6) -> int:
        """Cycles of QUANTIZE at most, with so many outliers per token.

        spread : as ``spread_of`` has it; None: as many cycles as any
        """
        online = operands["mode"] == OutlierMode.ONLINE
        rows = -(-operands["length"] // ROW_ELEMENTS)
        crowded, full = spread or (outliers - -(-outliers // ROW_ELEMENTS), outliers // 5)
        return dataclasses.replace(self.cycles, answer=answer).quantize(
            rows=rows,
            tokens=operands["tokens"],
            outliers=outliers,
            crowded=crowded,
            full=min(rows, full),
            pops=max(operands["k_max"], operands["k_min"]) if online else None,
            norm=operands["norm"],
        )

    def integers(self, **given) -> None:
        operands = {"src": 2, "stride": 0, "tokens": 1, "length": 16, "slot": 0} | given
        self.raw(Opcode.QUANTIZE_INTEGER, operands)
        status = self.faults(Opcode.QUANTIZE_INTEGER, operands)
        self.work += self.cycles.refused()
        if status:
            self.status(status)
            return
        rows = -(-operands["length"] // ROW_ELEMENTS)
        self.work += self.cycles.integer(rows, operands["tokens"])
        result = quantize_integer_command(self.tokens(operands), self.config.slot.integer_bits)
        stored = [0 if valid else None for valid in result.valid]
        self._slots(operands, result, stored, integer=True)

    def _slots(self, operands, result, stored, integer) -> None:
        entry_bits = activation_entry_bits(self.config.slot.bits_a, self.config.slot.integer_bits)
        length = operands["length"]
        count = -(-length // ROW_ELEMENTS)
        expected = self.expected
        for t in range(operands["tokens"]):
            slot, valid = operands["slot"] + t, bool(result.valid[t])
            pad = np.zeros(count * ROW_ELEMENTS - length, dtype=np.int64)
            entry = np.concatenate([result.index[t].numpy(), pad]).reshape(count, -1)
            mask = np.concatenate([result.outlier[t].numpy(), pad]).reshape(count, -1)
            for row in range(count if stored[t] is not None else 0):
                word = join(
                    (slot, 8), (row, 10), *((v, entry_bits) for v in entry[row]),
                    *((v, 1) for v in mask[row]),
                )  # fmt: skip
                expected["entries"].append((-1 if valid else 0x3FFFF, word))
            words = result.words[t][result.outlier[t]].tolist()
            assert not valid or len(words) == stored[t]
            for position in range(stored[t] or 0):
                word = words[position] if valid else 0
                expected["outlier"].append(
                    (-1 if valid else 0x3FFFFF, join((slot, 8), (position, 14), (word, 16)))
                )
            descriptor = join(
                (slot, 8), (valid, 1), (integer, 1), (length, 14), (stored[t] or 0, 14),
                (result.scale[t], 16), (result.rms_reciprocal[t], 32), (result.mean[t], 32),
            )  # fmt: skip
            self.before["descriptor"].append(
                {name: len(expected[name]) for name in ("entries", "outlier")}
            )
            expected["descriptor"].append((-1 if valid else 0x1FF, descriptor))
        self.status(result.command_status)


def memory(rng, config, *, bad: bool = True) -> tuple[np.ndarray, dict[str, tuple[int, int]]]:
    """Rows of the vector memory, and where each style of vectors begins and ends.

    Rows 0..3 hold two codebooks. Rows 4..7 hold codebooks with a centroid and with a midpoint
    beyond 1.
    """
    entries = config.centroids
    rows = rng.integers(0, 1 << 16, (config.vectors.rows, ROW_ELEMENTS))
    for first in (0, 2, 4, 6):
        centroids = random_codebook(rng, entries)
        rows[first, :entries] = centroids
        rows[first + 1, : entries - 1] = midpoints(torch.tensor(centroids)).numpy()
    rows[4, entries - 1] = ONE + 1
    rows[7, rng.integers(0, entries - 1)] = 0xFC01
    left, first, where = config.vectors.rows - 8, 8, {}
    for n, style in enumerate(("normal", *STYLES)):
        count = left // (len(STYLES) + 1 - n)
        rows[first : first + count] = random_rows(rng, style, count)
        name = "odd" if n == 0 else style
        if n == 0 and bad:
            for word in (INF, 0xFC00, NAN, 0xFC01, 0x7C01):
                row, element = rng.integers(first, first + count), rng.integers(0, ROW_ELEMENTS)
                rows[row, element] = word
        where[name] = (first, first + count)
        first, left = first + count, left - count
    return rows, where


def place(rng, config, where, style, length) -> dict:
    """Operands of where a command reads and writes."""
    low, high = where[style]
    count = -(-length // ROW_ELEMENTS)
    src = int(rng.integers(low, max(high - count, low) + 1))
    stride = int(rng.integers(0, count + 2))
    room = config.vectors.rows - src - count
    most = min(4, config.slot.slots, room // stride + 1 if stride else 4)
    tokens = int(rng.integers(1, most + 1))
    slot = int(rng.integers(0, config.slot.slots - tokens + 1))
    return {"src": src, "stride": stride, "tokens": tokens, "length": length, "slot": slot}


def random_command(rng, maker, where, longest) -> None:
    config = maker.config
    choice = rng.random()
    if choice < 0.12:
        maker.load(int(rng.choice([0, 2])))
        return
    if choice < 0.15:
        maker.load(int(rng.choice([4, 6, config.vectors.rows - 1])))
        maker.quantize(slot=1)
        maker.load(0)
        return
    length = int(rng.choice([1, 2, 15, 16, 17, 33, int(rng.integers(1, longest + 1)), longest]))
    style = str(rng.choice([*STYLES, "odd"]))
    if config.slot.integer_bits and choice < 0.4:
        style = str(rng.choice(["positive", "positive", "zeros", style]))
        maker.integers(**place(rng, config, where, style, length))
        return
    norm = int(rng.choice([Norm.NONE, Norm.RMS, Norm.LAYER]))
    more = {"norm": norm, **place(rng, config, where, style, length)}
    if choice < 0.75:
        k = rng.integers(0, min(config.slot.outliers_max, length) + 1, 2)
        if rng.random() < 0.9:
            k = k // 2
        if rng.random() < 0.9 and k.sum() >= length:
            k = np.minimum(k, (length - 1) // 2)
        maker.quantize(k_max=int(k[0]), k_min=int(k[1]), **more)
        return
    x = maker.rows[more["src"] :].reshape(-1)[:length]
    x = x[x & 0x7FFF < INF]
    if len(x) == 0:
        x = np.array([0])
    ordered = np.sort(x.astype(np.uint16).view(np.float16))
    kept = min(config.slot.outliers_max, len(x) // 2)
    low, high = rng.integers(0, kept // 2 + 1, 2)
    upper, lower = ordered[len(x) - 1 - high], ordered[low]
    words = [int(np.float16(v).view(np.uint16)) for v in (upper, lower)]
    words = [w ^ 0x8000 if w & 0x7FFF == 0 and rng.random() < 0.5 else w for w in words]
    maker.quantize(mode=OutlierMode.OFFLINE, thresholds=words[0] << 16 | words[1], **more)


def random_program(rng, config, commands, longest) -> Maker:
    rows, where = memory(rng, config)
    maker = Maker(config, rows)
    if rng.random() < 0.5:
        maker.quantize(slot=1)
    maker.load(0)
    for _ in range(commands):
        random_command(rng, maker, where, longest)
    return maker


def fault_programs(rng, config) -> list[Maker]:
    """Each fault, with a right command before and after it."""
    rows, where = memory(rng, config, bad=False)
    src = where["normal"][0]
    length, k = 2 * ROW_ELEMENTS + 3, 2
    spoiled = {}
    for name, (element, word) in {
        "nan": (5, NAN), "nan_last": (length - 1, 0xFC01), "infinite": (0, INF),
        "negative_infinite": (length - 1, 0xFC00), "behind": (length, NAN),
    }.items():  # fmt: skip
        at = where["odd"][0]
        changed = rows.copy()
        changed[at : at + 3] = rows[src : src + 3]
        changed[at + element // ROW_ELEMENTS, element % ROW_ELEMENTS] = word
        positive = where["positive"][0]
        changed[positive : positive + 3] &= 0x7FFF
        changed[positive + element // ROW_ELEMENTS, element % ROW_ELEMENTS] = word
        spoiled[name] = changed
    programs = []

    def program(change, rows=rows, load=True):
        maker = Maker(config, rows)
        right = {"src": src, "length": length, "k_max": k, "k_min": 1, "slot": 2, "norm": Norm.RMS}
        if load:
            maker.load(0)
            maker.quantize(**right)
        change(maker)
        if not load:
            maker.load(2)
        maker.quantize(**right)
        programs.append(maker)

    good = {"src": src, "length": length, "k_max": k, "k_min": k, "slot": 1}
    most, rows_max = config.slot.elements, config.vectors.rows
    ranges = [
        {"tokens": 0}, {"length": 0}, {"length": most + 1}, {"slot": config.slot.slots},
        {"slot": config.slot.slots - 1, "tokens": 2}, {"src": rows_max - 2}, {"src": 0xFFFF},
        {"stride": rows_max - src - 2, "tokens": 2}, {"stride": 0xFFFF, "tokens": 255},
        {"stride": 0x8000, "tokens": 3},
    ]  # fmt: skip
    for wrong in ranges:
        program(lambda maker, wrong=wrong: maker.quantize(**good | wrong))
        if config.slot.integer_bits:
            there = {key: good[key] for key in ("src", "length", "slot")}
            program(lambda maker, wrong=wrong, there=there: maker.integers(**there | wrong))
    edges = [{"slot": config.slot.slots - 1}, {"src": rows_max - 3}, {"length": most, "src": 8}]
    for right in edges:
        program(lambda maker, right=right: maker.quantize(**good | right | {"k_max": 1}))
    program(lambda maker: maker.quantize(**good | {"norm": 3}))
    offline = {"mode": OutlierMode.OFFLINE, "k_max": 999}
    for word in (INF, 0xFC00, NAN, 0x7C01):
        for thresholds in (word, word << 16):
            there = good | offline | {"thresholds": thresholds}
            program(lambda maker, there=there: maker.quantize(**there))
    for more in ({"k_max": length}, {"k_max": length - k}, {"k_min": 0xFFFF, "k_max": 0xFFFF}):
        program(lambda maker, more=more: maker.quantize(**good | more))
    program(lambda maker: maker.quantize(**good | {"k_max": length, "slot": 0xFF}))
    program(lambda maker: maker.quantize(**good | {"tokens": 2, "k_max": config.slot.outliers_max}))
    program(lambda maker: maker.quantize(
        **good | {"k_max": config.slot.outliers_max - 1, "k_min": 1, "length": most, "src": 8}
    ))  # fmt: skip
    program(lambda maker: maker.quantize(**good | offline | {"thresholds": 0, "tokens": 2}))
    program(lambda maker: maker.quantize(**good | {"tokens": 2}), load=False)
    for first in (4, 6):
        program(lambda maker, first=first: maker.load(first), load=False)

        def twice(maker, first=first):
            maker.load(first)
            maker.quantize(**good)
            maker.load(2)

        program(twice)
    program(lambda maker: maker.load(rows_max - 1))
    program(lambda maker: maker.load(0xFFFF))
    for opcode in (0, 0x13, 0x21, 0xFF):
        program(lambda maker, opcode=opcode: maker.unknown(opcode))
    for changed in spoiled.values():
        wide = {"mode": OutlierMode.OFFLINE, "thresholds": 0x7BFFFBFF}
        reach = where["normal"][0] - where["odd"][0]
        for more in ({}, wide, {"norm": Norm.LAYER, "k_max": 0}, {"norm": Norm.RMS, **wide}):
            there = good | {"src": where["odd"][0], "stride": reach, "tokens": 2} | more
            program(lambda maker, there=there: maker.quantize(**there), rows=changed)
        if config.slot.integer_bits:
            there = {"src": where["positive"][0], "length": length, "slot": 1, "tokens": 2}
            program(lambda maker, there=there: maker.integers(**there), rows=changed)
    if config.slot.integer_bits:
        for at in (0, length - 1, length):
            changed = rows.copy()
            positive = where["positive"][0]
            changed[positive : positive + 3] &= 0x7FFF
            changed[positive, 1] = 0x8000
            changed[positive + at // ROW_ELEMENTS, at % ROW_ELEMENTS] = 0x8001
            there = {"src": positive, "length": length, "slot": 1, "tokens": 1}
            program(lambda maker, there=there: maker.integers(**there), rows=changed)
    else:
        program(lambda maker: maker.unknown(Opcode.QUANTIZE_INTEGER))
    return programs


@pytest.mark.telling("small")
@pytest.mark.parametrize("name", CONFIGS)
def test_quantizer(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 43])
    # Tokens of the longest kind only where that is short: the rates have the others.
    longest = min(config.slot.elements, 300)
    count = 4 if name == "small" else 2
    programs = [random_program(rng, config, 22, longest).program("random") for _ in range(count)]
    faulty = [maker.program("fault") for maker in fault_programs(rng, config)]
    programs += faulty if name == "small" else faulty[::4]
    if name == "default":
        programs += rate_programs(rng, config)
    model = tb.simulate.run.build_model(KllmQuantizer(config))
    tb.simulate.run.run_model(
        model, "tb.kllm.tb_quantizer", config=config, params={"programs": programs}, seed=seed
    )


def test_programs_reach_every_status():
    """Programs of the small configuration reach each fault by itself, and tokens that differ."""
    rng = np.random.default_rng(45)
    config = CONFIGS["small"]
    makers = fault_programs(rng, config)
    seen = {word for maker in makers for _, word in maker.expected["status"]}
    for bit in ("MALFORMED", "RANGE", "CODEBOOK_MISSING", "NONFINITE", "CAPACITY", "NEGATIVE"):
        assert int(CommandStatus[bit]) in seen, bit
    valid = {
        (word >> 8 & 1, care != -1)
        for maker in makers
        for care, word in maker.expected["descriptor"]
    }
    assert valid == {(1, False), (0, True)}


RATED = [
    (mode, length, norm)
    for mode in (OutlierMode.ONLINE, OutlierMode.OFFLINE)
    for length in (576, 4096)
    for norm in (Norm.NONE, Norm.RMS)
]


def spread_of(config, maker) -> tuple[int, int]:
    """Counts outliers per token in the masks that golden expects of equal tokens.

    The outliers but for the first of each row; the rows with 5 or more.
    """
    mask = 18 + ROW_ELEMENTS * activation_entry_bits(config.slot.bits_a, config.slot.integer_bits)
    counts = [(word >> mask).bit_count() for _, word in maker.expected["entries"]]
    tokens = len(maker.expected["descriptor"])
    crowded = sum(max(count - 1, 0) for count in counts)
    return crowded // tokens, sum(count >= 5 for count in counts) // tokens


def rate_programs(rng, config) -> list[dict]:
    """One measured command each, the engine idle; OFFLINE with as many outliers as ONLINE.

    Rows at random, and rows whose outliers are all neighbours: the longest second pass. A single
    token of this kind reaches ``most``.
    """
    programs = []

    def add(name, change, rows, *, most, one=False, exact=False, refused=False, load=True):
        maker = Maker(config, rows)
        if load:
            maker.load(0)
        change(maker)
        most = most(maker)
        programs.append(
            maker.program(
                "rate", name=name, most=most, least=most if exact else 0, one=one,
                refused=refused, alone=True,
            )
        )  # fmt: skip

    rows, _ = memory(rng, config)
    rows[8:] = random_rows(rng, "normal", len(rows) - 8)
    k = 20
    neighbours = np.arange(2 * k)
    for (mode, length, norm), dense in itertools.product(RATED, (False, True)):
        count = -(-length // ROW_ELEMENTS)
        changed = rows.copy()
        x = changed[8 : 8 + count].reshape(-1).astype(np.uint16).view(np.float16)
        if dense:
            x = x.clip(-100, 100)
            x[length // 2 + neighbours] = (-1.0) ** neighbours * (200 + neighbours)
            changed[8 : 8 + count] = x.view(np.uint16).reshape(count, -1)
        # Stride 0: the same rows again, so that these thresholds suit all tokens.
        x = np.sort(x)
        upper, lower = (int(x[at].view(np.uint16)) for at in (-k - 1, k))
        for tokens in (1, 8):
            there = {"src": 8, "tokens": tokens, "length": length, "norm": norm, "mode": mode}
            there |= {"k_max": k, "k_min": k, "thresholds": upper << 16 | lower}
            name = f"{mode.name} {length} x {tokens}, norm {norm.name}{', dense' if dense else ''}"

            def most(maker, there=there, dense=dense):
                spread = spread_of(config, maker)
                assert not dense or spread[0] == 2 * k - -(-2 * k // ROW_ELEMENTS)
                return maker.most(there, 2 * k, spread, answer=2)

            add(name, lambda maker, there=there: maker.quantize(**there), changed, most=most,
                one=tokens == 1, exact=tokens == 1 and dense)  # fmt: skip
    positive = rows & 0x7FFF
    positive[:2] = rows[:2]
    for length in (576, 4096):
        for tokens in (1, 8):
            there = {"src": 8, "tokens": tokens, "length": length}
            add(
                f"INTEGER {length} x {tokens}",
                lambda maker, there=there: maker.integers(**there),
                positive,
                most=lambda maker, there=there: config.cycles.integer(
                    -(-there["length"] // ROW_ELEMENTS), there["tokens"]
                ),
                one=tokens == 1,
                exact=True,
            )
    exact = {"rows": rows, "exact": True}
    add("codebook", lambda maker: maker.load(2), most=lambda maker: config.cycles.codebook(),
        load=False, **exact)  # fmt: skip
    add("unknown", lambda maker: maker.unknown(0), most=lambda maker: config.cycles.refused(),
        refused=True, **exact)  # fmt: skip
    for tokens in (1, 3):
        dead = {"k_max": config.slot.outliers_max, "k_min": 1, "length": 576, "tokens": tokens}
        add(f"CAPACITY x {tokens}", lambda maker, dead=dead: maker.quantize(src=8, **dead),
            most=lambda maker, tokens=tokens: config.cycles.refused(tokens), **exact)  # fmt: skip
    return programs


LONGEST = KllmQuantizerConfig(
    vectors=VectorShape(rows=1033), integer_lanes=16,
    slot=SlotShape(slots=2, elements=16383, outliers_max=16383, bits_a=2, integer_bits=8),
)  # fmt: skip


def test_longest_token(seed):
    """Tokens of K_MAX elements: every one but one an outlier, every integer, every sum."""
    rng = np.random.default_rng([seed, 44])
    rows, _ = memory(rng, LONGEST, bad=False)
    rows[8:] = random_rows(rng, "large", len(rows) - 8)
    rows[8, 5] = 0xFBFF
    there = {"src": 8, "length": K_MAX, "slot": 1}
    near = rows.copy()
    near[8:] = random_rows(rng, "near", len(rows) - 8)
    middle = int(np.sort(near[8:].reshape(-1)[:K_MAX])[K_MAX // 2])
    programs = []
    for change in (
        lambda maker: maker.quantize(k_max=30, k_min=17, norm=Norm.LAYER, **there),
        lambda maker: maker.quantize(
            mode=OutlierMode.OFFLINE, thresholds=0xFBFFFBFF, norm=Norm.RMS, **there
        ),
    ):
        maker = Maker(LONGEST, rows)
        maker.load(0)
        change(maker)
        programs.append(maker)
    assert len(programs[1].expected["outlier"]) > K_MAX - 10
    maker = Maker(LONGEST, near)
    maker.load(0)
    maker.quantize(mode=OutlierMode.OFFLINE, thresholds=middle << 16 | middle, **there)
    programs.append(maker)
    positive = rows & 0x7FFF
    maker = Maker(LONGEST, positive)
    maker.integers(**there)
    programs.append(maker)
    model = tb.simulate.run.build_model(KllmQuantizer(LONGEST))
    tb.simulate.run.run_model(
        model, "tb.kllm.tb_quantizer", config=LONGEST, seed=seed, testcase="longest_token",
        params={"programs": [maker.program("longest", alone=True) for maker in programs]},
    )  # fmt: skip
