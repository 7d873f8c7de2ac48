"""``python -m senbazuru.runs.million_rates``: cycles of ATTEND per KV head, and of tokens encoded.

Codes come by RESTORE. All outputs and statuses are compared with golden. ATTENDs follow one another
at several numbers of keys, also while the encoder works in the background. ``--apart`` measures the
ATTENDs of configurations whose K and V have streams of their own. ``--page`` rewrites the tables of
docs/million.md that were measured.
"""

import argparse
import dataclasses
import json

from rich.console import Console

from golden import command
from golden.command import elapsed
from golden.million.bounds import Bound, bound
from golden.million.format import Op
from golden.million.timing import attend_cycles, group_interval
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, predicted, save
from tb.simulate.run import ROOT, build_model, run_model

PAGE = ROOT / "docs" / "million.md"
KEYS = (128, 1024, 8192, 32764)  # and 4 sinks: the longest sequence
BLOCK = "million_attention"
BUSY_KEYS = (128, 1024)  # keys in codes of these
_TRAIN = "from the first status of the train to its last"
_LONE = "from the request taken to the status, summed"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.million_rates", description=__doc__)
    parser.add_argument("--keys", type=whole(), default=KEYS[-1], help="leave out more keys")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    parser.add_argument("--apart", action="store_true", help="K and V on streams of their own")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    tables = ["million_apart"] if options.apart else ["million_attend", "million_encoder"]
    check_page(parser, options.page, tables)
    with owned(parser, options.json):
        return report(options, [keys for keys in KEYS if keys <= options.keys])


def _configs() -> dict[str, MillionAttentionConfig]:
    found = {}
    for name, data_bits, macs, keys in (
        ("smollm2", 256, 64, 1),
        ("llama", 256, 64, 1),
        ("llama", 1024, 64, 1),
        ("llama", 1024, 64, 2),
        # A word of a codebook has at most head_dim elements, so 128 are the most.
        ("llama", 1024, 128, 1),
        ("llama", 1024, 128, 2),
    ):
        config = BLOCKS[BLOCK].configs[name]
        assert isinstance(config, MillionAttentionConfig)
        rate = dataclasses.replace(config.rate, macs=macs, keys=keys)
        config = dataclasses.replace(config, data_bits=data_bits, rate=rate)
        found[f"{name}, {data_bits}, {macs}, {keys}"] = config
    return found


CONFIGS = _configs()  # by model, bits of a memory word, macs, keys per cycle
# Those whose memory words hold more than the keys of a cycle, with K and V on streams of their own.
APART = {
    name: dataclasses.replace(config, kv_apart=True)
    for name, config in CONFIGS.items()
    if config.data_bits > config.rate.keys * config.cache.pq.record_bits
}


def report(options: argparse.Namespace, keys: list[int]) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    from tb.million.support.steps import BASE  # torch, only now
    from tb.million.support.trains import (
        PAIRS,
        attend_parts,
        encoder_parts,
        lone_cycles,
        train_cycles,
    )

    figures: list[Figure] = []
    attends = [
        "| head size | memory word | macs | P | keys in codes | limit | bound | cycles | ratio |",
        "| ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    head = (
        "head size", "memory word", "macs", "P", "PREFILL", "keys in codes", "ATTEND, encoder idle",
        "busy", "ratio",
    )  # fmt: skip
    encoder = [f"| {' | '.join(head)} |", "| ---: " * len(head) + "|"]
    simulated = {"cycles": 0, "seconds": 0.0}
    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False))
    for named, config in (APART if options.apart else CONFIGS).items():
        say(named)
        model = build_model(MillionAttention(config), long_run=True)

        def run(parts: list[dict], model=model, config=config) -> dict:
            for part in parts:  # codes are not measured while they come
                part["latency"] = 1 if part["name"].startswith("restore") else options.latency
            params = {"parts": parts, "base": BASE, "latency": options.latency}
            work = run_model(model, "tb.million.tb_replay", config=config, params=params)
            made = json.loads((work / "replay.json").read_text())
            say(f"{len(parts)} parts: {made['simulated']['cycles']} cycles simulated")
            for name in simulated:
                simulated[name] += made["simulated"][name]
            return made["parts"]

        rate = config.rate
        name = f"| {config.cache.pq.head_dim} | {config.data_bits} | {rate.macs} | {rate.keys} |"
        for count in () if options.apart else BUSY_KEYS:
            found = run(encoder_parts(config, count))
            prefill, number = train_cycles(found["prefill"], Op.PREFILL)
            idle, busy = (lone_cycles(found, each) for each in ("idle", "busy"))
            figures += [
                _figure(config, {"part": part, "keys": count, "requests": n}, cycles, span, options)
                for part, n, cycles, span in (
                    ("prefill", number, prefill, _TRAIN),
                    ("idle", PAIRS, idle, _LONE),
                    ("busy", PAIRS, busy, _LONE),
                )
            ]
            encoder.append(
                f"{name} {prefill / number:.0f} | {count} | {idle / PAIRS:.0f} "
                f"| {busy / PAIRS:.0f} | {busy / idle:.3f} |"
            )
        found = run(attend_parts(config, keys))
        for count in keys:
            cycles, number = train_cycles(found[f"attend {count}"], Op.ATTEND)
            figures.append(_attend(config, count, cycles, number, options))
            attends.append(f"{name} {_row(config, figures[-1], number)}")
    tables = {"million_attend": "\n".join(attends), "million_encoder": "\n".join(encoder)}
    if options.apart:
        tables = {"million_apart": tables["million_attend"]}
    for text in tables.values():
        console.print(text, highlight=False, soft_wrap=True)
    rate = simulated["cycles"] / simulated["seconds"]
    console.print(f"{simulated['cycles']} cycles simulated, {rate:.0f} per second")
    write_page(options.page, {title: f"{text}\n" for title, text in tables.items()})
    save(options.json, figures)
    return 0


def _figure(
    config: MillionAttentionConfig, what: dict, cycles: int, span: str, options: argparse.Namespace,
    least: int | None = None, **more,
) -> Figure:  # fmt: skip
    return Figure(
        command="senbazuru.runs.million_rates",
        block=BLOCK,
        configuration=described(config),
        parameters={**what, "memory_latency": options.latency},
        span=span,
        cycles=cycles,
        bound=least,
        **more,
    )


def _attend(
    config: MillionAttentionConfig, keys: int, cycles: int, number: int, options: argparse.Namespace
) -> Figure:
    cache, found = config.cache, _bound(config, keys)
    heads = cache.head.heads
    groups = heads * found.groups  # of an ATTEND
    interval = group_interval(
        cache.pq, config.rate, found, elements=config.output.elements, exact=cache.window.sinks,
        groups=groups, apart=config.kv_apart,
    )  # fmt: skip
    foreseen = attend_cycles(interval, number * groups)
    what = {"keys": keys, "requests": number, "apart": int(config.kv_apart)}
    return _figure(
        config, what, cycles, _TRAIN, options, number * heads * found.head,
        **predicted(attend_cycles, round(foreseen)),
    )  # fmt: skip


def _bound(config: MillionAttentionConfig, keys: int) -> Bound:
    cache = config.cache
    return bound(cache.pq, config.rate, cache.head.group, keys, config.data_bits)


def _row(config: MillionAttentionConfig, figure: Figure, number: int) -> str:
    """Per KV head."""
    keys = int(figure.parameters["keys"])
    found = _bound(config, keys)
    each = figure.cycles / (number * config.cache.head.heads)
    return f"{keys} | {found.limit} | {found.head} | {each:.0f} | {each / found.head:.3f} |"


if __name__ == "__main__":
    command.run("senbazuru.runs.million_rates", main)
