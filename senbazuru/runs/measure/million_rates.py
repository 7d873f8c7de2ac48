"""``senbazuru.runs.million_rates``: trains of ATTENDs, tokens encoded, and both at once."""

import argparse
import dataclasses
import json

import torch
from rich.console import Console

from golden.command import elapsed
from golden.million.bounds import Bound, bound
from golden.million.format import Op
from golden.million.timing import attend_cycles, group_interval
from hdl.arguments import write_page
from hdl.million.attention import MillionAttention, MillionAttentionConfig
from hdl.million.room import BLOCKS
from senbazuru.runs.cycles import Figure, described, predicted, save
from tb.million.support.replay import Parts, random_books, some_words
from tb.simulate.run import build_model, run_model

BLOCK = "million_attention"
BASE = 0x40_0000
ATTENDS = 3  # of a train; the first is not counted
PREFILLS = 8  # of a train; the first is not counted
PAIRS = 4  # ATTENDs with the encoder at work, and as many without
BUSY_KEYS = (128, 1024)  # keys in codes of these
_RESTORES = 8192  # of a part
_TRAIN = "from the first status of the train to its last"
_LONE = "from the request taken to the status, summed"


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


class _Train(Parts):
    """Random tokens of one sequence and layer."""

    def __init__(self, config: MillionAttentionConfig, seed: int = 1):
        super().__init__(config)
        self.generator = torch.Generator().manual_seed(seed)
        self.sequence = self.open()
        self.load(0, random_books(config, self.generator))
        self.keys = 0  # in codes
        for _ in range(config.cache.window.sinks):
            self.prefill(self.sequence, 0, *self._vectors())

    def _vectors(self) -> torch.Tensor:
        cache = self.block.cache
        return some_words(self.generator, 2, cache.head.heads, cache.pq.head_dim)

    def keys_until(self, keys: int) -> None:
        """RESTOREs."""
        cache = self.block.cache
        shape = (keys - self.keys, 2, cache.head.heads, cache.pq.subspaces)
        for k, v in torch.randint(cache.pq.entries, shape, generator=self.generator):
            self.restore(self.sequence, 0, k, v)
        self.keys = keys

    def tokens(self, count: int, prefill: bool) -> None:
        for _ in range(count):
            (self.prefill if prefill else self.append)(self.sequence, 0, *self._vectors())
        self.keys += count * prefill

    def attends(self, count: int) -> None:
        cache = self.block.cache
        shape = (cache.head.heads, cache.head.group, cache.pq.head_dim)
        width = cache.pq.head_dim**-0.5
        for _ in range(count):
            self.attend(self.sequence, 0, some_words(self.generator, *shape, width=width))


def attend_parts(config: MillionAttentionConfig, keys: list[int]) -> list[dict]:
    """Parts ``attend N`` for each number of keys, and those that place the codes."""
    train = _Train(config)
    for count in keys:
        for until in (*range(train.keys + _RESTORES, count, _RESTORES), count):
            train.keys_until(until)
            train.cut(f"restore {until}")
        train.attends(ATTENDS)
        train.cut(f"attend {count}")
    return train.parts


def encoder_parts(config: MillionAttentionConfig, keys: int) -> list[dict]:
    """Parts prefill, ``busy N`` and ``idle N``.

    busy: an ATTEND right after an APPEND, whose token is encoded meanwhile. idle: the same keys and
    rows, and nothing to encode.
    """
    train = _Train(config)
    train.keys_until(keys - PREFILLS)
    train.cut("restore")
    train.tokens(PREFILLS, prefill=True)
    train.cut("prefill")
    for number in range(PAIRS):
        train.tokens(1, prefill=False)
        train.attends(1)
        train.cut(f"busy {number}")
        train.attends(1)
        train.cut(f"idle {number}")
    return train.parts


def train_cycles(part: dict, op: Op) -> tuple[int, int]:
    """(cycles, requests) from the first status of ``op`` to its last."""
    ends = [cycle for each, cycle in part["statuses"] if each == op]
    return ends[-1] - ends[0], len(ends) - 1


def lone_cycles(parts: dict, name: str) -> int:
    """Cycles of all ATTENDs of the parts ``name N``: from the request taken to the status."""
    found = [part for key, part in parts.items() if key.startswith(f"{name} ")]
    return sum(part["statuses"][-1][1] - part["requests"][-1] for part in found)


def report(options: argparse.Namespace, keys: list[int]) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
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
