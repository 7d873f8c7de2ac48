"""``python -m tb.runs.mmu_rates``: how much of memory's bandwidth READs use; cycles of APPENDs.

All words are compared with what was written.
``--page`` rewrites the table of docs/blocks/paging_mmu.md.
"""

import json

from rich.console import Console

from golden import command
from golden.oaken.config import CacheConfig, KvShape
from hdl.arguments import add_page, check_page, write_page
from hdl.oaken.mmu import PagingMmuConfig
from hdl.paging.mmu import PagingMmu
from tb.run import ROOT, build_model, run_model
from tb.runs.cycles import Figure, add_option, described, save

__all__ = ["ONE_HEAD", "TARGET", "main", "measure"]

PAGE = ROOT / "docs" / "blocks" / "paging_mmu.md"
ONE_HEAD = PagingMmuConfig(
    cache=CacheConfig(
        kv=KvShape(heads=1, head_dim=128, block=64),
        sequences=4,
        layers=4,
        pages=256,
        max_tokens=1024,
    )
)
MANY_HEADS = PagingMmuConfig(cache=CacheConfig(sequences=2, layers=4, pages=512, max_tokens=1024))
TARGET = {"reads": 32, "tokens": 256, "heads": 1}  # at least 0.90 of the bandwidth
LATENCY = 100  # cycles from AR to the first beat
LENGTHS = (1, 16, 64, 256)
OUTLIERS = 0.1  # of the elements
APPENDS = 8  # of a train, one after the other


def measure(config: PagingMmuConfig, runs: list[dict], seed: int = 1) -> dict:
    """What tb_mmu_rates measured."""
    work = run_model(
        build_model(PagingMmu(config)),
        "tb.paging.tb_mmu_rates",
        config=config,
        params={
            "runs": runs,
            "latency": LATENCY,
            "outliers": OUTLIERS,
            "appends": APPENDS,
            "append_latencies": [1, LATENCY],
        },
        seed=seed,
    )
    return json.loads((work / "rates.json").read_text())


def _runs(heads: int) -> list[dict]:
    return [
        {"reads": reads, "tokens": tokens, "heads": heads}
        for reads in (1, 32 // heads)
        for tokens in LENGTHS
    ]


def _figures(config: PagingMmuConfig, found: dict) -> list[Figure]:
    """Of READs, whose bound is a word per cycle, and of trains of APPENDs."""

    def figure(parameters: dict, span: str, cycles: int, bound: int | None = None) -> Figure:
        return Figure(
            command="tb.runs.mmu_rates",
            block="paging_mmu",
            configuration=described(config),
            parameters={**parameters, "outlier_share": OUTLIERS},
            span=span,
            cycles=cycles,
            bound=bound,
        )

    reads = [
        figure(
            {**{name: run[name] for name in ("reads", "tokens", "heads", "words")},
             "memory_latency": LATENCY},
            "from the first request to the last word, both included",
            run["cycles"],
            run["words"],
        )
        for run in found["reads"]
    ]  # fmt: skip
    return reads + [
        figure(
            {"appends": APPENDS, "memory_latency": latency},
            "from the first request to the last status",
            round(APPENDS * cycles),
        )
        for latency, cycles in found["appends"]
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.runs.mmu_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["mmu_rates"])
    console = Console()
    lines = [
        "| heads of a READ | tokens | READs | words | cycles | words / cycle |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    appends, pages, figures = [], [], []
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
    write_page(options.page, {"mmu_rates": text + "\n"})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("tb.runs.mmu_rates", main)
