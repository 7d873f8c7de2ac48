"""``senbazuru.runs.mmu_rates``: how much of memory's bandwidth READs use; cycles of APPENDs.

All words are compared with what was written.
``--page`` rewrites the table of docs/blocks/paging_mmu.md. ``--sweep`` measures several MMUs at
several latencies of the memory, for ``sim.requests``.
"""

from collections.abc import Sequence

from rich.console import Console

from golden import command
from golden.oaken.config import CacheConfig, KvShape
from hdl.arguments import add_page, check_page, write_page
from hdl.oaken.mmu import PagingMmuConfig
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.paging.support.rates import APPENDS, ONE_HEAD, OUTLIERS, measure
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "blocks" / "paging_mmu.md"
MANY_HEADS = PagingMmuConfig(cache=CacheConfig(sequences=2, layers=4, pages=512, max_tokens=1024))
LENGTHS = (1, 16, 64, 256)


def _swept(heads: int, head_dim: int, page_bytes: int, **numbers) -> PagingMmuConfig:
    """An MMU with pages for every run of the sweep."""
    kv = KvShape(heads=heads, head_dim=head_dim, block=64)
    cache = CacheConfig(
        kv=kv, sequences=1, layers=4, pages=1024, page_bytes=page_bytes, max_tokens=1024
    )
    return PagingMmuConfig(cache=cache, **numbers)


SWEEP: dict[str, tuple[PagingMmuConfig, list[int]]] = {  # an MMU, and the heads of its READs
    "one": (_swept(1, 128, 4096), [1]),
    "eight": (_swept(8, 128, 4096), [1, 8]),
    "narrow": (
        _swept(
            2, 64, 1024, data_bits=128, burst_beats=16, outstanding=4, reads=4, appends=1,
            dense_beats=64, sparse_beats=32, scale_beats=16,
        ),
        [1, 2],
    ),
    "window": (
        _swept(
            1, 128, 16384, outstanding=2, dense_beats=512, sparse_beats=512, scale_beats=512
        ),
        [1],
    ),
    "deep": (_swept(4, 64, 2048, burst_beats=32, outstanding=8, dense_beats=512), [1, 4]),
    "tight": (
        _swept(
            1, 64, 512, data_bits=64, burst_beats=8, outstanding=1, reads=1, appends=2,
            dense_beats=8, sparse_beats=8, scale_beats=4,
        ),
        [1],
    ),
    "long": (
        _swept(2, 128, 65536, data_bits=512, burst_beats=256, dense_beats=1024, sparse_beats=512),
        [1, 2],
    ),
}  # fmt: skip
SWEEP_LATENCIES = (2, 20, 50, 100, 200)
SWEEP_LENGTHS = (1, 20, 64, 300)




def _runs(heads: int, most: int = 32, lengths: Sequence[int] = LENGTHS) -> list[dict]:
    """One READ, and a train of READs of ``most`` heads in all."""
    return [
        {"reads": reads, "tokens": tokens, "heads": heads}
        for reads in (1, most // heads)
        for tokens in lengths
    ]


# Parameters of a figure of READs; words are those of each kind of record, of all READs.
_READ = (
    "reads", "tokens", "heads", "words", "dense_words", "sparse_words", "scale_words",
    "memory_latency",
)  # fmt: skip


def _figures(config: PagingMmuConfig, found: dict) -> list[Figure]:
    """The figures of READs, whose bound is a word per cycle, and of trains of APPENDs."""

    def figure(parameters: dict, span: str, cycles: int, bound: int | None = None) -> Figure:
        return Figure(
            command="senbazuru.runs.mmu_rates",
            block="paging_mmu",
            configuration=described(config),
            parameters={**parameters, "outlier_share": OUTLIERS},
            span=span,
            cycles=cycles,
            bound=bound,
        )

    reads = [
        figure(
            {name: run[name] for name in _READ},
            "from the first request to the last word, both included",
            run["cycles"],
            run["words"],
        )
        for run in found["reads"]
    ]  # fmt: skip
    return reads + [
        figure(
            {"appends": APPENDS, "first_token": n * APPENDS, "memory_latency": latency},
            "from the first request to the last status",
            round(APPENDS * cycles),
        )
        for n, (latency, cycles) in enumerate(found["appends"])
    ]


def _sweep(console: Console) -> list[Figure]:
    figures = []
    for name, (config, heads) in SWEEP.items():
        runs = [run for each in heads for run in _runs(each, 16, SWEEP_LENGTHS)]
        found = measure(config, runs, 1, SWEEP_LATENCIES, SWEEP_LATENCIES)
        figures += _figures(config, found)
        console.print(f"{name}: {len(found['reads'])} runs of READs", highlight=False)
    return figures


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.mmu_rates", description=__doc__)
    add_page(parser, PAGE)
    parser.add_argument(
        "--sweep", action="store_true", help="several MMUs and latencies, for the file alone"
    )
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.sweep and options.page:
        parser.error("--page must not be given with --sweep, which has no table")
    check_page(parser, options.page, ["mmu_rates"])
    console = Console()
    with owned(parser, options.json):
        if options.sweep:
            figures = _sweep(console)
        else:
            text, figures = _tables(console)
            write_page(options.page, {"mmu_rates": text + "\n"})
        save(options.json, figures)
    return 0


def _tables(console: Console) -> tuple[str, list[Figure]]:
    """The tables of PAGE, printed too, and their figures."""
    lines = [
        "| heads of a READ | tokens | READs | words | cycles | words / cycle |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    appends, pages = [], []
    figures: list[Figure] = []
    for name, config, heads in (("one", ONE_HEAD, [1]), ("eight", MANY_HEADS, [1, 8])):
        runs = [run for each in heads for run in _runs(each)]
        found = measure(config, runs)
        figures += _figures(config, found)
        for run in found["reads"]:
            console.print(name, run, highlight=False)
            rate = run["words"] / run["cycles"]
            lines.append(
                f"| {run['heads']} of {config.cache.kv.heads} | {run['tokens']} | {run['reads']} "
                f"| {run['words']} | {run['cycles']} | {rate:.3f} |"
            )
        for latency, cycles in found["appends"]:
            appends.append(f"| {config.cache.kv.heads} | {latency} | {cycles:.0f} |")
        for tokens, allocated, used in found["pages"]:
            pages.append(
                f"| {config.cache.kv.heads} | {tokens} | {allocated} | {used} "
                f"| {allocated / used:.2f} |"
            )
    lines += [
        "",
        "| heads | latency of B | cycles of an APPEND |",
        "| ---: | ---: | ---: |",
        *appends,
        "",
        "| heads | tokens | bytes of pages | bytes used | ratio |",
        "| ---: | ---: | ---: | ---: | ---: |",
        *pages,
    ]
    text = "\n".join(lines)
    console.print(text, highlight=False)
    return text, figures


if __name__ == "__main__":
    command.run("senbazuru.runs.mmu_rates", main)
