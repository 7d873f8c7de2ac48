"""``python -m senbazuru.runs.kv_rates``: cycles of APPENDs and READs alone, and of both together.

All words read are compared with golden.
``--page`` rewrites the table of docs/blocks/oaken_kv_engine.md.
"""

import argparse
import json

from rich.console import Console

from golden import command
from golden.oaken import timing
from golden.oaken.format import SCALE_BYTES
from hdl.arguments import add_page, check_page, write_page
from hdl.oaken.inlier_quantizer import OakenInlierQuantizer
from hdl.oaken.kv_engine import OakenKvEngine, OakenKvEngineConfig
from hdl.oaken.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from tb.simulate.run import ROOT, build_model, run_model

PAGE = ROOT / "docs" / "blocks" / "oaken_kv_engine.md"
RUNS = ((32, 16, 32, 20), (32, 16, 32, 100), (16, 16, 128, 100))  # APPENDs, READs, tokens, latency


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.kv_rates", description=__doc__)
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ["kv_rates"])
    with owned(parser, options.json):
        return report(options)


def _append_cycles(config: OakenKvEngineConfig, appends: int, latency: int) -> int:
    """Golden's cycles from the first beat of a train of APPENDs to the end of its last status."""
    kv, word_bytes = config.cache.kv, config.mmu.word_bytes
    words = [-(-(n * SCALE_BYTES % word_bytes + SCALE_BYTES) // word_bytes) for n in range(appends)]
    first = timing.kv_append_latency(
        config.lanes, OakenInlierQuantizer.SCALE_STAGES, kv.slots, words[0], latency
    )
    further = sum(timing.kv_append_cycles(kv.slots, count, latency) for count in words[1:])
    return kv.elements // config.lanes + first + further


def _read_cycles(config: OakenKvEngineConfig, beats: int, latency: int) -> int:
    """Golden's cycles from the first READ to the end of the last status, all at full rate."""
    decoder = config.reader.decoder
    first = timing.kv_read_cycles(
        decoder.scale_stages, decoder.stages, config.mmu.sparse_beats, latency
    )
    block = OakenKvEngine(config)
    block._MustUse__silence = True  # nothing elaborates it
    full = block.timing
    return first + beats * full.interval + full.delay("from a READ's last beat to its status")


def _figures(config: OakenKvEngineConfig, run: tuple[int, ...], cycles: dict) -> list[Figure]:
    appends, reads, tokens, latency = run
    beats = reads * tokens * config.cache.kv.elements // config.lanes
    written = appends * config.cache.kv.elements // config.lanes
    golden = {
        "appends": predicted(timing.kv_append_cycles, _append_cycles(config, appends, latency)),
        "reads": predicted(timing.kv_read_cycles, _read_cycles(config, beats, latency)),
        "both": {},
    }
    bounds = {"appends": written, "reads": beats, "both": max(written, beats)}
    parameters = {"appends": appends, "reads": reads, "tokens": tokens, "memory_latency": latency}
    return [
        Figure(
            command="senbazuru.runs.kv_rates",
            block="oaken_kv_engine",
            configuration=described(config),
            parameters={"traffic": traffic, **parameters},
            span="from the first request to the end of the last status",
            cycles=cycles[traffic],
            bound=bounds[traffic],
            **golden[traffic],
        )
        for traffic in ("appends", "reads", "both")
    ]


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from tb.oaken.support.overlap import overlap_script  # torch, only now

    figures = []
    config = BLOCKS["oaken_kv_engine"].configs["smollm2"]
    assert isinstance(config, OakenKvEngineConfig)
    kv = config.cache.kv
    model = build_model(OakenKvEngine(config))
    sizes = f"{kv.heads} heads of {kv.head_dim}, {config.lanes} lanes"
    headings = (
        "APPENDs", "READs", "tokens of a READ", "latency of memory", "cycles: APPENDs", "READs",
        "both", "beats of o per cycle: READs", "both",
    )  # fmt: skip
    lines = [
        f"smollm2: {sizes}, words of {config.mmu.data_bits} bits; every READ of all heads.",
        "",
        f"| {' | '.join(headings)} |",
        "| ---: " * len(headings) + "|",
    ]
    for appends, reads, tokens, latency in RUNS:
        phases = overlap_script(config, 1, appends, reads, tokens)
        params = {"scripts": {"overlap": phases}, "latency": latency}
        work = run_model(
            model, "tb.oaken.tb_kv_engine", config=config, params=params, testcase="overlap"
        )
        cycles = json.loads((work / "overlap.json").read_text())
        figures += _figures(config, (appends, reads, tokens, latency), cycles)
        beats = reads * tokens * kv.elements // config.lanes
        lines.append(
            f"| {appends} | {reads} | {tokens} | {latency} | {cycles['appends']} "
            f"| {cycles['reads']} | {cycles['both']} | {beats / cycles['reads']:.2f} "
            f"| {beats / cycles['both']:.2f} |"
        )
    text = "\n".join(lines)
    Console().print(text, highlight=False, soft_wrap=True)
    write_page(options.page, {"kv_rates": text + "\n"})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.kv_rates", main)
