"""``python -m senbazuru.runs.kv_rates``: cycles of APPENDs and READs alone, and of both together.

All words read are compared with golden.
``--page`` rewrites the table of docs/blocks/oaken_kv_engine.md.
"""

import argparse
import dataclasses
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


def configurations() -> list[OakenKvEngineConfig]:
    """Returns SmolLM2's cache in order head, the same in order token, and with wider words."""
    configs = BLOCKS["oaken_kv_engine"].configs
    head, wide = configs["smollm2"], configs["smollm2_token"]
    assert isinstance(head, OakenKvEngineConfig)
    assert isinstance(wide, OakenKvEngineConfig)
    mmu = dataclasses.replace(head.mmu, cache=wide.cache)
    return [head, dataclasses.replace(head, mmu=mmu), wide]


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
    block = OakenKvEngine(config)
    block._MustUse__silence = True  # nothing elaborates it
    full = block.timing
    after = full.delay("from a READ's last beat to its status")
    return config.read_cycles(latency) + beats * full.interval + after


def _predictions(config: OakenKvEngineConfig, run: tuple[int, ...], beats: int) -> dict:
    """Golden's cycles of each traffic. In order token an APPEND's depend on its outliers."""
    appends, _, _, latency = run
    read, append = timing.kv_read_cycles, {}
    if config.cache.kv.is_by_token:
        read = timing.kv_token_read_cycles
    else:
        append = predicted(timing.kv_append_cycles, _append_cycles(config, appends, latency))
    return {
        "appends": append,
        "reads": predicted(read, _read_cycles(config, beats, latency)),
        "both": {},
    }


def _figures(config: OakenKvEngineConfig, run: tuple[int, ...], cycles: dict) -> list[Figure]:
    appends, reads, tokens, latency = run
    beats = reads * tokens * config.cache.kv.elements // config.lanes
    written = appends * config.cache.kv.elements // config.lanes
    golden = _predictions(config, run, beats)
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
    headings = (
        "order", "lanes", "bits of a word", "APPENDs", "READs", "tokens of a READ",
        "latency of memory", "cycles: APPENDs", "READs", "both", "beats of o per cycle: READs",
        "both",
    )  # fmt: skip
    lines = [
        "smollm2: 3 heads of 64; every READ of all heads.",
        "",
        f"| {' | '.join(headings)} |",
        "| --- " + "| ---: " * (len(headings) - 1) + "|",
    ]
    for config in configurations():
        kv, word = config.cache.kv, config.mmu.data_bits
        model = build_model(OakenKvEngine(config))
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
                f"| {kv.order} | {config.lanes} | {word} | {appends} | {reads} | {tokens} "
                f"| {latency} | {cycles['appends']} | {cycles['reads']} | {cycles['both']} "
                f"| {beats / cycles['reads']:.2f} | {beats / cycles['both']:.2f} |"
            )
    text = "\n".join(lines)
    Console().print(text, highlight=False, soft_wrap=True)
    write_page(options.page, {"kv_rates": text + "\n"})
    save(options.json, figures)
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.kv_rates", main)
