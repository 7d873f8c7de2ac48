"""``senbazuru.runs.vq_attention``: an image in both engines: cycles, areas, work, differences."""

import argparse
import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console

from golden.command import elapsed
from golden.fp16.format import FP16
from golden.markers import table
from golden.million.bounds import bound, step_bound
from golden.million.cache import Codebooks
from golden.million.config import HeadShape, MillionConfig, PqShape, RateShape, WindowShape
from golden.million.decode import decode_sums
from golden.million.format import Op
from golden.million.operations import SCHEMES, once
from golden.million.timing import decode_values
from golden.million.vectors.decode_jobs import Job, beats_of, shared_vectors
from golden.vqllm.attention import attend
from golden.vqllm.config import ATTEND, AttendShape
from golden.vqllm.timing import attend_bound
from golden.words import layout_words, unpack_ints
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.decode_engine import MillionDecodeEngine, MillionDecodeEngineConfig
from hdl.million.layouts import beat_layout, score_layout
from hdl.vqllm.attend.attention import VqAttention, VqAttentionConfig
from senbazuru.runs.cycles import Figure, described, give
from senbazuru.runs.measure.million_rates import BASE, lone_cycles
from synth.area import load_libraries
from synth.memories import ram
from synth.modules import Cost, MappedDesign, map_modules
from tb.million.support.replay import Parts
from tb.simulate.run import build_model, run_model
from tb.vqllm.support.attention import Head, Script
from tb.vqllm.support.one_image import OneImage, Softmax, differences

TRAIN = 5  # requests of a train; the first and the last are not counted
COUNTED = TRAIN - 2
LONGEST = 8192  # tokens that every engine has room for
_WIDE = "wide"  # engines of which the table of parts says nothing
_TRAIN = "from the first status of the train to the last but one"
_ALONE = "from the request taken to the status"
_JOBS = "from the last word of the train's first job to that of the last but one"

Config = VqAttentionConfig | MillionAttentionConfig | MillionDecodeEngineConfig


def _vq(**sizes) -> VqAttentionConfig:
    return VqAttentionConfig(shape=AttendShape(max_tokens=LONGEST, **sizes))


def _million(**sizes) -> MillionAttentionConfig:
    """One KV head with as many queries, and no exact rows."""
    shape = ATTEND["cq4"]
    cache = MillionConfig(
        pq=shape.pq,
        head=HeadShape(heads=1, group=shape.queries),
        window=WindowShape(sinks=0, keep=0, block=0),
        layers=1,
        max_tokens=LONGEST,
        pages=320,
        scope_heads=True,
    )
    return MillionAttentionConfig(cache=cache, rate=RateShape(queries=shape.queries), **sizes)


# By configuration, the registered name and the block.
_BLOCKS: dict[type, tuple[str, type[Block]]] = {
    VqAttentionConfig: ("vq_attention", VqAttention),
    MillionAttentionConfig: ("million_attention", MillionAttention),
    MillionDecodeEngineConfig: ("million_decode_engine", MillionDecodeEngine),
}
ENGINES: dict[str, Config] = {
    "`vq_attention`, 8 groups": _vq(),
    "`vq_attention`, 64 groups": _vq(groups=64),
    "`million_attention`": _million(),
    f"`vq_attention`, 64 groups, {_WIDE}": _vq(groups=64, data_bits=1024),
    f"`million_attention`, {_WIDE}": _million(data_bits=1024, kv_apart=True),
    "`million_decode_engine`": MillionDecodeEngineConfig(max_keys=LONGEST),
}
_ATTENDS = {"codebooks", "scores", "softmax", "values", "outputs"}  # rows of what attends codes
# Class of a module -> row of it and of its parts.
_PARTS = {
    "MillionDecodeLookup": "codebooks",
    "IndexCodebookStore": "codebooks",
    **dict.fromkeys(
        ("VqRowSums", "VqRowFinish", "MillionTableBuilder", "MillionScoreEngine",
         "MillionDecodeKeys"),
        "scores",
    ),
    "AttentionWeights": "softmax",
    **dict.fromkeys(("VqAttendCore", "MillionValueEngine", "MillionDecodeValues"), "values"),
    "MillionOutput": "outputs",
    **dict.fromkeys(("VqAttendFetch", "PagingMmu"), "memory port"),
    **dict.fromkeys(
        ("VqAttention", "VqAttendControl", "VqQueryGate", "VqAttendVerdict", "VqCodeBeats",
         "MillionAttention", "MillionDecodeEngine", "MillionControl", "MillionAttendControl",
         "MillionEncodeControl", "MillionVerdict", "MillionLoader", "MillionKvWriter",
         "MillionQuerySplitter", "MillionCodeReader", "MillionRecordWriter", "MillionRestorer"),
        "control and queues",
    ),
    "MillionWindow": "exact rows",
    "MillionPqEncoder": "encoder",
}  # fmt: skip


def shape_of(config: Config) -> tuple[PqShape, int]:
    """Codes of a vector, and queries side by side."""
    if isinstance(config, VqAttentionConfig):
        return config.shape.pq, config.shape.queries
    if isinstance(config, MillionAttentionConfig):
        return config.cache.pq, config.rate.queries
    return config.pq, config.rate.queries


# Cycles


@dataclasses.dataclass(frozen=True)
class Spent:
    """Cycles of KV heads, with their bounds.

    others : of COUNTED heads among others of a layer, and the bound of one. alone : of one head.
    loaded : of COUNTED heads that each take new codebooks by a LOAD, and the bound of one
    """

    tokens: int
    others: tuple[int, int]
    alone: int | None = None
    loaded: tuple[int, int] | None = None

    @property
    def each(self) -> str:
        """Cycles of a head among others."""
        return f"{self.others[0] / COUNTED:,.0f}"

    @property
    def cells(self) -> list[str]:
        cycles, least = self.others
        found = [f"{least:,}", self.each, f"{cycles / COUNTED / least:.3f}"]
        found.append("" if self.alone is None else f"{self.alone:,}")
        if self.loaded is None:
            return [*found, "", ""]
        cycles, least = self.loaded
        return [*found, f"{least:,}", f"{cycles / COUNTED:,.0f}"]


def _among(ends: Sequence[int]) -> int:
    """Cycles of COUNTED heads of a train: of the last one nothing follows, so it is faster."""
    return ends[-2] - ends[0]


def _vq_cycles(config: VqAttentionConfig, images: Sequence[OneImage], latency: int) -> list[Spent]:
    shape, scripts = config.shape, []
    for image in images:
        reads = image.in_passes(shape)
        head = Head.of(image.books, image.codes, image.q)
        for count in (1, TRAIN):
            script = Script(np.random.default_rng(1), config)
            script.book(0, head.books, head.exponents)
            for _ in range(count):
                script.request(head, 0)
            again = {name: content * count for name, content in reads.items()}
            scripts.append(script.params() | {"reads": again})
    model = build_model(VqAttention(config), long_run=True)
    params = {"scripts": scripts, "latency": latency}
    where = run_model(model, "tb.vqllm.tb_attention_run", config=config, params=params)
    cycles = json.loads((where / "cycles.json").read_text())
    return [
        Spent(
            tokens=image.tokens,
            others=(_among(train), attend_bound(shape, image.tokens, shape.pq.entries)),
            alone=alone[-1],
        )
        for image, alone, train in zip(images, cycles[::2], cycles[1::2], strict=True)
    ]


def _bytes(words: Sequence[int], size: int) -> bytes:
    return b"".join(word.to_bytes(size, "little") for word in words)


def _check_streams(parts: Parts, image: OneImage, first: int) -> None:
    """AssertionError unless the words so far are the image: codebooks, and codes from ``first``."""
    found, words = image.image(), parts.words
    if words["codebook"]:
        books = _bytes(words["codebook"], 2 * parts.lanes)
        assert books == found["books_k"] + found["books_v"], "codebooks: not the bytes of the image"
    size = image.pq.record_bytes
    records = _bytes(words["restored"], min(size, parts.data_bits // 8))
    k, v = (np.frombuffer(found[f"codes_{side}"], np.uint8).reshape(-1, size) for side in "kv")
    wanted = np.stack([k, v], 1)[first:].tobytes()
    assert records == wanted, "records: not the bytes of the image"


def million_parts(config: MillionAttentionConfig, images: Sequence[OneImage]) -> list[dict]:
    """Parts ``alone N``, ``others N``, ``loaded N`` for N tokens, and those that place the codes.

    alone: an ATTEND. others: a train of them. loaded: a train, each with a LOAD before it. Each
    part names the images that it reads.
    """
    parts = Parts(config)
    sequence, done = parts.open(), 0
    books = Codebooks(*((book,) for book in images[0].books))
    parts.load(0, books)
    for image in images:
        k, v = image.codes
        for token in range(done, image.tokens):
            parts.restore(sequence, 0, k[None, token], v[None, token])
        _check_streams(parts, image, done)
        done = image.tokens
        parts.cut(f"restore {done}")
        found = {name: each for name, each in image.image().items() if "codes" in name}
        for name, count in (("alone", 1), ("others", TRAIN), ("loaded", TRAIN)):
            for _ in range(count):
                if name == "loaded":
                    parts.load(0, books)
                parts.attend(sequence, 0, image.q[None])
            parts.cut(f"{name} {done}")
            parts.parts[-1]["reads"] = {side: each * count for side, each in found.items()}
    return parts.parts


def _million_cycles(
    config: MillionAttentionConfig, images: Sequence[OneImage], latency: int
) -> list[Spent]:
    parts = million_parts(config, images)
    for part in parts:  # codes are not measured while they come
        part["latency"] = 1 if part["name"].startswith("restore") else latency
    model = build_model(MillionAttention(config), long_run=True)
    params = {"parts": parts, "base": BASE, "latency": latency}
    where = run_model(model, "tb.million.tb_replay", config=config, params=params)
    found = json.loads((where / "replay.json").read_text())["parts"]
    cache, rate, spent = config.cache, config.rate, []

    def train(name: str) -> int:
        return _among([cycle for op, cycle in found[name]["statuses"] if op == Op.ATTEND])

    for image in images:
        tokens = image.tokens
        least = bound(cache.pq, rate, cache.head.group, tokens, config.data_bits).head
        step = step_bound(cache, rate, tokens, config.data_bits, layers=1)
        spent.append(
            Spent(
                tokens=tokens,
                others=(train(f"others {tokens}"), least),
                alone=lone_cycles({f"alone {tokens}": found[f"alone {tokens}"]}, "alone"),
                loaded=(train(f"loaded {tokens}"), step),
            )
        )
    return spent


def decode_words(config: MillionDecodeEngineConfig, image: OneImage) -> dict[str, list[int]]:
    """Words of each stream for TRAIN jobs of keys and of values, each with its codebook."""
    rng, rate = np.random.default_rng(1), config.rate
    softmax = Softmax.decoded(image)
    scores, weights = softmax.scores.numpy(), softmax.weights.T.numpy()
    sums = decode_sums(softmax.weights.T, image.books[1].words, image.codes[1])
    queries, parts = len(image.q), config.parts
    order = np.arange(queries * config.pq.head_dim).reshape(queries, parts, rate.macs)
    flat = sums.integers()
    values = [[flat[n] for n in row] for row in order.transpose(1, 0, 2).reshape(-1, rate.macs)]
    words: dict[str, list[int]] = {}
    q = np.tile(image.q.numpy().reshape(-1, rate.lanes), (TRAIN, 1))
    none = np.zeros(TRAIN, dtype=np.int64)

    def keys(words: np.ndarray) -> np.ndarray:
        """Beats of a word for each query, of all jobs; slots beyond the keys have +0."""
        beats = beats_of(words, rate.keys, lambda count: np.zeros((count, queries), dtype=np.int64))
        return np.tile(beats, (TRAIN, 1, 1))

    beats = -(-image.tokens // rate.keys)
    last = np.tile(np.arange(beats) == beats - 1, TRAIN)
    for side, block, book, codes in zip(
        "kv", (config.keys_side, config.values_side), image.books, image.codes, strict=True
    ):
        jobs = [Job(book.words.numpy(), True, codes.numpy(), {})] * TRAIN
        vectors, _ = shared_vectors(rng, block, jobs)
        job = {"keys": none + image.tokens, "entries": none + config.pq.entries, "switch": none + 1}
        if side == "k":
            size = queries * block.query_beats
            vectors |= {
                "q": layout_words(
                    beat_layout(rate.lanes), word=q, last=np.arange(len(q)) % size == size - 1
                ),
                "score": layout_words(score_layout(rate), word=keys(scores), last=last),
                "end": layout_words(block.end_layout, bad_code=none, bad=none),
            }
            job |= {
                "slope": np.zeros((TRAIN, queries), dtype=np.int64),
                "exponent": none + book.exponent,
                "distance": none + image.tokens - 1,
            }
        else:
            vectors |= {
                "weight": layout_words(
                    score_layout(rate), word=keys(weights), last=last
                ),
                "sum": layout_words(
                    block.sum_layout, value=values * TRAIN,
                    last=np.tile(np.arange(len(values)) == len(values) - 1, TRAIN),
                ),
                "end": layout_words(block.end_layout, bad_code=none),
            }  # fmt: skip
        vectors["job"] = layout_words(block.job_layout, **job)
        words |= {f"{side}_{name}": unpack_ints(each) for name, each in vectors.items()}
    return words


def _decode_cycles(
    config: MillionDecodeEngineConfig, images: Sequence[OneImage], latency: int
) -> list[Spent]:
    model, spent = build_model(MillionDecodeEngine(config), long_run=True), []
    books = config.pq.entries * config.parts  # words of a codebook; those of K and V come together
    for image in images:
        params = {"words": decode_words(config, image)}
        where = run_model(model, "tb.million.tb_decode_run", config=config, params=params)
        ends = json.loads((where / "cycles.json").read_text())
        drain = decode_values().latency + config.parts * config.rate.queries - 1  # sums leave
        spent.append(
            Spent(
                tokens=image.tokens,
                others=(
                    max(_among(each) for each in ends.values()),
                    max(-(-image.tokens // config.rate.keys) + drain, books),
                ),
            )
        )
    return spent


def measure(config: Config, images: Sequence[OneImage], latency: int) -> list[Spent]:
    """Cycles of an engine for each image, each the first tokens of one.

    AssertionError where an output differs from golden's, or a byte that is read from the image's.
    """
    if isinstance(config, VqAttentionConfig):
        return _vq_cycles(config, images, latency)
    if isinstance(config, MillionAttentionConfig):
        return _million_cycles(config, images, latency)
    return _decode_cycles(config, images, latency)


def _figures(config: Config, spent: Sequence[Spent], latency: int) -> list[Figure]:
    name, _ = _BLOCKS[type(config)]
    is_decode = isinstance(config, MillionDecodeEngineConfig)
    figures = []
    for each in spent:
        heads, pair = (_JOBS if is_decode else _TRAIN, COUNTED), (None, None)
        for name_of, (cycles, least), (span, count) in (
            ("among others", each.others, heads),
            ("alone", (each.alone, None), (_ALONE, 1)),
            ("after a LOAD", each.loaded or pair, heads),
        ):
            if cycles is not None:
                figures.append(
                    Figure(
                        command="senbazuru.runs.vq_attention",
                        block=name,
                        configuration=described(config),
                        parameters={
                            "tokens": each.tokens, "head": name_of, "heads": count,
                            "memory_latency": latency,
                        },
                        span=span,
                        cycles=cycles,
                        bound=None if least is None else count * least,
                    )
                )  # fmt: skip
    return figures


# Areas


def _row_of(kind: str, parent: str, row: str) -> str:
    if kind.startswith("Memory") and parent == "VqAttendCore":
        return "softmax"  # the weights of all tokens
    return _PARTS.get(kind) or row


@dataclasses.dataclass(frozen=True)
class Areas:
    """Of an engine by row; the mm2 of RAMs are those of CACTI."""

    design: MappedDesign
    rows: dict[str, Cost]
    rams: dict[str, float]

    @classmethod
    def of(cls, design: MappedDesign) -> "Areas":
        sizes = {}
        for module in design.design.modules:
            if module.name in design.macro_bits:
                size = module.block.config.describe()
                ports = type(module.block).__qualname__.removeprefix("Memory").lower()
                sizes[module.name] = ram(ports, size["depth"], size["width"]).um2
        in_um2 = dataclasses.replace(design, macro_bits=sizes)  # type: ignore[arg-type]
        rams = {row: cost.ram_bits / 1e6 for row, cost in in_um2.by_row(_row_of).items()}
        return cls(design, design.by_row(_row_of), rams)

    def cost(self, rows=None) -> Cost:
        """Of some rows, or of all."""
        chosen = (cost for row, cost in self.rows.items() if rows is None or row in rows)
        return sum(chosen, Cost())

    def kge(self, rows=None) -> str:
        return f"{self.cost(rows).um2 / self.design.nand2_um2 / 1000:,.1f}"

    def mm2(self, rows=None) -> str:
        """Logic and RAM."""
        rams = sum(mm2 for row, mm2 in self.rams.items() if rows is None or row in rows)
        return f"{self.cost(rows).um2 * self.design.scale_28nm / 1e6 + rams:.2f}"


def _areas(say) -> dict[str, Areas]:
    libraries, found = load_libraries(), {}
    for name, config in ENGINES.items():
        _, block = _BLOCKS[type(config)]
        found[name] = Areas.of(map_modules(convert(block(config), "part"), libraries))
        say(f"{name}: {found[name].kge()} kGE")
    return found


def _parts(areas: dict[str, Areas]) -> str:
    areas = {name: each for name, each in areas.items() if _WIDE not in name}
    order, rows = dict.fromkeys(_PARTS.values()), []
    for row in (*order, None):
        cells = []
        for each in areas.values():
            chosen = None if row is None else (row,)
            has_row = row is None or row in each.rows
            bits = each.cost(chosen).ram_bits
            cells += [each.kge(chosen) if has_row else "", f"{bits:,}" if bits else ""]
        rows.append(["**total**" if row is None else row, *cells])
    figures = ("kGE", "SRAM bits")
    return table(["part", *(f"{name}: {each}" for name in areas for each in figures)], rows)


# Work


@dataclasses.dataclass(frozen=True)
class Work:
    """Of all queries, by formula; bits of SRAM are those read and written, without queues.

    products, bits : of a key, K and V; once, once_bits : of a KV head; multipliers : in the engine
    """

    lookups: int
    products: int
    bits: int
    once: int
    once_bits: int
    multipliers: int


def work(config: Config) -> Work:
    pq, queries = shape_of(config)
    scores = 2 * FP16.bits * queries  # written and read
    book = pq.entries * pq.head_dim * FP16.bits  # of K or V
    decoded = [SCHEMES[side, "decoded"](pq, queries) for side in "KV"]
    lookups = sum(each.reads for each in decoded)
    products = sum(each.products for each in decoded)
    bits = sum(each.sram_bits for each in decoded)
    if isinstance(config, VqAttentionConfig):
        passes = config.shape.passes
        partial = (2 * passes - 1) * config.sums.partials.width  # each pass reads, all but one add
        weights = (1 + 2 * passes) * FP16.bits * queries  # written once, read in each pass
        return Work(
            lookups=lookups,
            products=products,
            bits=bits + partial + scores + weights,
            once=0,
            once_bits=2 * book,
            multipliers=2 * queries * config.sums.macs,
        )
    if isinstance(config, MillionAttentionConfig):
        bins = config.value_engine.finish.histogram.bank.bin_bits * pq.subspaces * queries
        entry = FP16.bits * pq.subspaces * queries
        return Work(
            lookups=lookups,
            products=0,
            bits=entry + 2 * bins + scores,
            once=2 * once(pq) * queries,
            # Codebooks written and read, tables written, bins read and cleared.
            once_bits=4 * book + pq.entries * (entry + 2 * bins),
            multipliers=2 * config.rate.macs,
        )
    return Work(lookups, products, bits, 0, 2 * book, 2 * queries * pq.head_dim)


def _work() -> str:
    rows = []
    for name, config in ENGINES.items():
        each = work(config)
        least = each.once // max(1, work(next(iter(ENGINES.values()))).products - each.products)
        rows.append([
            name, each.lookups, f"{each.products:,}", f"{each.bits:,}", f"{each.once:,}",
            f"{each.once_bits:,}", f"{least:,}" if each.once else "",
            f"{(each.once_bits + LONGEST * each.bits) / 1e6:,.1f}",
        ])  # fmt: skip
    head = [
        "engine", "look-ups per key", "products per key", "SRAM bits per key", "products per head",
        "SRAM bits per head", "products equal at keys",
        f"million SRAM bits, {LONGEST:,} keys",
    ]  # fmt: skip
    return table(head, rows)


# Outputs


def _outputs(images: Sequence[OneImage]) -> str:
    """AssertionError where golden's results differ by more than the roundings explain."""
    rows = []
    for image in images:
        status, first = attend(image.q, *image.codes, *image.books)
        assert not status
        assert torch.equal(first, Softmax.decoded(image).outputs(image))
        second = Softmax.looked_up(image)[0].outputs(image)
        found = differences(image, first, second)
        rows.append([
            f"{image.tokens:,}", f"{found.equal:.1%}", f"{found.most:.2e}", f"{found.bound:.2e}",
            f"{found.apart:.2e}", *(f"{error:.2e}" for error in found.errors),
        ])  # fmt: skip
    head = [
        "tokens", "equal words", "largest difference", "its bound", "difference",
        "error of `vq_attention`", "error of `million_attention`",
    ]  # fmt: skip
    return table(head, rows)


# All


def _port(config: Config) -> str:
    if isinstance(config, VqAttentionConfig):
        return f"{config.shape.data_bits:,}"
    return f"{config.data_bits:,}" if isinstance(config, MillionAttentionConfig) else "streams"


def _summary(areas: dict[str, Areas], spent: dict[str, list[Spent]]) -> str:
    rows = []
    for name, config in ENGINES.items():
        area, each = areas[name], work(config)
        rows.append([
            name, _port(config), f"{each.multipliers:,}", area.kge(_ATTENDS),
            f"{area.cost(_ATTENDS).ram_bits:,}", area.mm2(_ATTENDS),
            f"{each.once + LONGEST * each.products:,}", f"{each.bits:,}",
            *(found.each for found in spent[name]),
        ])  # fmt: skip
    tokens = [found.tokens for found in next(iter(spent.values()))]
    head = [
        "engine", "port bits", "multipliers", "kGE", "SRAM bits", "mm2",
        f"products, {LONGEST:,} tokens", "SRAM bits per key",
        *(f"cycles, {count:,} tokens" for count in tokens),
    ]  # fmt: skip
    return table(head, rows)


def report(options: argparse.Namespace, tokens: Sequence[int]) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    console = Console()
    say = elapsed(lambda text: console.print(text, highlight=False))
    pq, queries = shape_of(next(iter(ENGINES.values())))
    whole = OneImage.random(pq, queries, max(tokens))
    images = [whole.first(count) for count in tokens]
    outputs = _outputs(images)
    say("outputs agree")
    spent, figures, rows = {}, [], []
    for name, config in ENGINES.items():
        spent[name] = measure(config, images, options.latency)
        figures += _figures(config, spent[name], options.latency)
        rows += [[name, _port(config), f"{each.tokens:,}", *each.cells] for each in spent[name]]
        say(f"{name}: all outputs and all bytes read are equal")
    head = [
        "engine", "port bits", "tokens", "bound", "cycles", "ratio", "alone", "bound, after a LOAD",
        "cycles, after a LOAD",
    ]  # fmt: skip
    areas = _areas(say)
    made = {
        "vq_attention": _summary(areas, spent), "vq_attention_cycles": table(head, rows),
        "vq_attention_work": _work(), "vq_attention_parts": _parts(areas),
        "vq_attention_outputs": outputs,
    }  # fmt: skip
    return give(options, made, figures)
