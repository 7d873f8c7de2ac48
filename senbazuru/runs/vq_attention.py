"""``senbazuru.runs.vq_attention``: one image of codes through VQ-LLM's and MILLION's attention.

Codebooks, codes and queries of a KV head under cq4 at head size 128, MILLION's (64, 8). All outputs
are compared with golden, and the bytes that both engines read with the image. Areas come from
synth. ``--page`` rewrites the tables of docs/vqllm-attention.md.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from golden import command
from golden.command import elapsed
from golden.fp16.format import FP16
from golden.markers import table
from golden.million.config import HeadShape, MillionConfig, RateShape, WindowShape
from golden.million.operations import SCHEMES, once
from golden.sram import ram
from golden.vqllm.config import ATTEND, AttendShape
from hdl.arguments import add_page, check_page, whole
from hdl.back.verilog import convert
from hdl.block import Block
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.decode_engine import MillionDecodeEngine, MillionDecodeEngineConfig
from hdl.vqllm.attend.attention import VqAttention, VqAttentionConfig
from senbazuru.runs.cycles import Figure, add_option, described, give, owned
from synth.area import load_libraries
from synth.modules import Cost, MappedDesign, map_modules
from tb.simulate.run import ROOT
from tb.vqllm.support.heads import COUNTED, Config, Spent, shape_of

if TYPE_CHECKING:
    from tb.vqllm.support.one_image import OneImage

PAGE = ROOT / "docs" / "vqllm-attention.md"
TOKENS = (128, 1024, 8192)
SECTIONS = (
    "vq_attention", "vq_attention_cycles", "vq_attention_work", "vq_attention_parts",
    "vq_attention_outputs",
)  # fmt: skip
LONGEST = 8192  # tokens that every engine has room for
_WIDE = "wide"  # engines of which the table of parts says nothing
_TRAIN = "from the first status of the train to the last but one"
_ALONE = "from the request taken to the status"
_JOBS = "from the last word of the train's first job to that of the last but one"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.vq_attention", description=__doc__)
    parser.add_argument("--tokens", type=whole(), default=TOKENS[-1], help="leave out more tokens")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.page and (options.tokens, options.latency) != (TOKENS[-1], 40):
        parser.error("--page: the page has the standard cases: no --tokens, no --latency")
    check_page(parser, options.page, SECTIONS)
    tokens = [count for count in TOKENS if count <= options.tokens]
    if not tokens:
        parser.error(f"--tokens must be {TOKENS[0]} or more")
    with owned(parser, options.json):
        return report(options, tokens)


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


# Cycles






















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
    """The areas of an engine by row; the mm2 of RAMs are those of CACTI."""

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
        """The cost of some rows, or of all."""
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
    """The work of all queries, by formula; bits of SRAM are those read and written, without queues.

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


def _outputs(images: "Sequence[OneImage]") -> str:
    """AssertionError where golden's results differ by more than the roundings explain."""
    import torch  # only now

    from golden.vqllm.attention import attend
    from tb.vqllm.support.one_image import Softmax, differences

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
    from tb.vqllm.support.attention_engines import measure  # torch, only now
    from tb.vqllm.support.one_image import OneImage

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


if __name__ == "__main__":
    command.run("senbazuru.runs.vq_attention", main)
