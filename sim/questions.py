"""``python -m sim.questions``: an architect's questions, answered in tables of docs/sim.md.

A number in parentheses is extrapolated (``Cost.extrapolated``). A table that compares chips ends
with what its steps of decoding leave out: the whole request, the cache, and what the chip takes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from golden import command
from golden.config import ConfigError
from golden.markers import table
from sim.claims.measure import served
from sim.constant import Interval
from sim.energy.kllm import ORIGINS
from sim.energy.nodes import NODES
from sim.energy.table import event_table
from sim.engine import NOT_SCALED, Engine, check_fits, engine_of
from sim.model import Model, find_model
from sim.run import UNKNOWN, Run
from sim.tables import print_tables
from sim.validate import PAGE
from sim.work import Pass

_7B = "llama-2-7b"
_PROMPT = 1024  # tokens of the requests
# Fields of kllm-a4 for the tokens of a 7B model.
_TOKENS = ("slot.elements=16383", "softmax_elements=16383", "replay_beats=1024")


class _Figure(NamedTuple):
    """A number, and whether it is extrapolated."""

    value: float
    is_outside: bool


def _step(engine: Engine, model: Model, batch: int, context: int) -> _Figure | None:
    """Tokens per second of one step; None: it does not fit, or the chip has no way."""
    try:
        check_fits(engine, model, batch, context + 1)
        cost = engine.cost(model, Pass.decode(batch, context))
    except ConfigError:
        return None
    return _Figure(batch / cost.seconds, bool(cost.extrapolated))


def _shown(found: _Figure | None, digits: int = 0) -> str:
    """Writes a figure: below 10 with one digit more, below 1 with one more again."""
    if found is None:
        return ""
    value, is_outside = found
    digits += 0 if value >= 10 else 1 if value >= 1 or digits == 0 else 2
    return f"({value:.{digits}f})" if is_outside else f"{value:.{digits}f}"


def _request(engine: Engine, model: Model, batch: int, out: int) -> Run | None:
    """1,024 tokens and ``out`` more; None: it does not fit, or the chip has no way."""
    try:
        return Run(engine, model, batch, _PROMPT, out).compute()
    except ConfigError:
        return None


def _taken(engines: Sequence[Engine], model: Model, batch: int, out: int) -> list[list[str]]:
    """The rows with which a comparison ends, a cell for each chip, the first cell their name."""
    made = [_request(each, model, batch, out) for each in engines]

    def cells(figure: Callable[[Run], float]) -> list[str]:
        return [
            _shown(_Figure(figure(each), bool(each.cost.extrapolated)), 1) if each else ""
            for each in made
        ]

    held = [sum(each.sram_bytes(model).values()) for each in engines]
    bits = [each.kv_bits(model, _PROMPT + out) for each in engines]
    areas = [
        ", ".join(
            f"{area if isinstance(area, str) else f'{area:,.0f}'} ({kind})"
            for kind, area in each.shown_area.items()
        )
        for each in engines
    ]
    of = f"{_PROMPT:,} + {out:,} tokens, batch {batch}"
    return [
        [f"first token, s: {of}", *cells(lambda each: each.prefill.seconds)],
        [f"request, s: {of}", *cells(lambda each: each.seconds)],
        [
            f"request, J: {of}",
            *(
                NOT_SCALED if "energy" in engine.not_scaled else cell
                for engine, cell in zip(
                    engines, cells(lambda each: each.cost.joules.value), strict=True
                )
            ),
        ],
        ["stored bits of an element of K / V", *(f"{k:.2f} / {v:.2f}" for k, v in bits)],
        ["area, mm2 (by)", *(each or UNKNOWN for each in areas)],
        ["memory on the chip, MB", *(f"{each / 1e6:.1f}" if each else UNKNOWN for each in held)],
    ]


def batch_and_context() -> str:
    """Tokens per second of decoding by batch and context; bold: where the A100 passes KLLM."""
    model = find_model(_7B)
    names = ("kllm-a4", "kllm-a4-wide", "a100-80gb", "a100-qserve")
    engines = [engine_of(name) for name in names]
    rows = []
    for context, batch in itertools.product((128, 1024, 4096), (1, 4, 16, 64)):
        found = [_step(engine, model, batch, context) for engine in engines]
        best = max(each.value if each else 0.0 for each in found[:2])
        cells = [
            f"**{_shown(each)}**" if n > 1 and each and each.value > best else _shown(each)
            for n, each in enumerate(found)
        ]
        rows.append([f"decoding, tokens/s: after {context}, batch {batch}", *cells])
    rows += _taken(engines, model, 1, 128)
    rows += _taken(engines, model, 16, 128)[:3]
    return table(["", *names], rows)


def lanes_and_ports() -> str:
    """Tokens per second of KLLM after 512 tokens by lanes and ports, the clock the same."""
    model, rows = find_model(_7B), []
    ports = (12, 24, 48)
    for lanes in (4, 8, 16, 32, 64):
        cells = []
        for count in ports:
            changes = {
                "settings.set": [
                    *_TOKENS, "engines=8", f"lane.lanes={lanes}", f"ports.ports={count}"
                ],
                "memory.channels": count,
            }
            try:
                cells.append(_shown(_step(engine_of("kllm-a4", changes), model, 1, 512)))
            except ConfigError:
                cells.append("")
        rows.append([lanes, *cells])
    return table(["lanes", *(f"{count} ports" for count in ports)], rows)


def long_contexts() -> str:
    """Tokens per second of a batch of 8 by context, K and V stored by each scheme."""
    model = find_model(_7B)
    names = ("oaken-hbm-fp16", "oaken-hbm", "oaken-lpddr-fp16", "oaken-lpddr", "million-4b")
    engines = [engine_of(name) for name in names]
    rows = []
    for context in (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072):
        cells = (_shown(_step(each, model, 8, context)) for each in engines)
        rows.append([f"decoding, tokens/s: after {context}", *cells])
    rows += _taken(engines, model, 8, 128)
    return table(["", *names], rows)


def hbm_or_lpddr() -> str:
    """Tokens per second of requests that bring 1,024 tokens and make as many."""
    names = ("oaken-hbm", "oaken-lpddr", "a100-vllm", "a100-qserve")
    rows: list[list[str]] = []
    for model, batch in itertools.product((_7B, "llama-2-13b"), (16, 64, 256)):
        cells = []
        for name in names:
            try:
                rate = served(name, model, batch, _PROMPT, 1024)
                cells.append(_shown(_Figure(rate, False)))
            except ConfigError:
                cells.append("")
        rows.append([f"{model}, {batch} requests: tokens/s, prompts included", *cells])
    rows += _taken([engine_of(name) for name in names], find_model(_7B), 16, 1024)
    return table(["", *names], rows)


def command_queues() -> str:
    """Tokens per second of KLLM by the commands that wait for each unit, and by their pace."""
    model, rows = find_model(_7B), []
    for queue, cycles in itertools.product((4, 8, 16, 64), (48, 32)):
        changes = {"settings.queue": queue, "constants.command.value": cycles}
        engine = engine_of("kllm-a4", changes)
        found = [_step(engine, model, 1, context) for context in (128, 1024, 4096)]
        rows.append([queue, cycles, *map(_shown, found)])
    return table(["queue", "cycles of a command", "after 128", "after 1024", "after 4096"], rows)


def functions() -> str:
    """Tokens per second of KLLM by elements per cycle of the functional unit, queues of 16."""
    model, rows = find_model(_7B), []
    for width in (4, 8, 16):
        changes = {"settings.queue": 16, "settings.function_width": width}
        engine = engine_of("kllm-a4", changes)
        found = [_step(engine, model, 1, context) for context in (128, 1024, 4096)]
        rows.append([width, *map(_shown, found)])
    return table(["elements per cycle", "after 128", "after 1024", "after 4096"], rows)


def attention() -> str:
    """Tokens per second of KLLM by engines of ATTEND, and elements of K or V of each in a cycle."""
    model, rows = find_model(_7B), []
    for engines, lanes in ((1, 32), (1, 64), (2, 64), (4, 64), (8, 64)):
        changes = {
            "settings.set": [*_TOKENS, f"engines={engines}"], "settings.attention_lanes": lanes,
        }  # fmt: skip
        found = [_step(engine_of("kllm-a4", changes), model, 1, each) for each in (128, 1024, 4096)]
        rows.append([engines, lanes, *map(_shown, found)])
    names = ["engines", "elements per cycle", "after 128", "after 1024", "after 4096"]
    return table(names, rows)


def pair() -> str:
    """Tokens per second of decoding by context and batch: KLLM, Oaken, and both in one chip."""
    model, rows = find_model(_7B), []
    names = ("kllm-a4", "oaken-hbm", "kllm-oaken")
    engines = [engine_of(name) for name in names]
    for batch, context in (*((1, 1 << n) for n in (7, 10, 12, 13, 14, 15)), (8, 128), (8, 4096)):
        cells = (_shown(_step(each, model, batch, context)) for each in engines)
        rows.append([f"decoding, tokens/s: after {context}, batch {batch}", *cells])
    rows += _taken(engines, model, 1, 128)
    rows += _taken(engines, model, 8, 128)[:3]
    return table(["", *names], rows)


_WINDOWS = ((16, 64), (1, 64), (4, 8), (1, 8))  # bursts in flight, and words of a burst


def windows() -> str:
    """Milliseconds of attention in a step of LLaMA-2-13B: long bursts, or each core's window."""
    model, rows = find_model("llama-2-13b"), []
    for name, context, batch in itertools.product(
        ("oaken-lpddr", "oaken-hbm"), (1024, 16384), (1, 16, 64)
    ):
        chips = [engine_of(name)]
        for outstanding, words in _WINDOWS:
            changes = {"settings.outstanding": outstanding, "settings.burst_beats": words}
            chips.append(engine_of(f"{name}-requests", changes))
        try:
            check_fits(chips[0], model, batch, context + 1)
        except ConfigError:
            continue
        passed = Pass.decode(batch, context)
        found = [each.cost(model, passed).spent for each in chips]
        cells = [
            sum(1e3 * each.seconds for each in spent if "kv_read" in each.traffic)
            for spent in found
        ]
        rows.append([name, context, batch, *(f"{each:.3f}" for each in cells)])
    headings = (f"{count} of {words}" for count, words in _WINDOWS)
    return table(["chip", "cached tokens", "batch", "long bursts", *headings], rows)


def _events(name: str, **settings: object) -> Engine:
    changes = {f"settings.{field}": value for field, value in settings.items()}
    return engine_of(name, {"settings.energy": "events", **changes})


def _plain(value: float) -> str:
    """Three digits, without a power of ten from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _range(found: Interval, scale: float = 1.0) -> str:
    low, value, high = (each * scale for each in dataclasses.astuple(found))
    return " ".join((_plain(value), f"({_plain(low)} to {_plain(high)})"))


def events_at_28() -> str:
    """Picojoules of each event at 28 nm: by each library, and as the simulator takes it."""
    events, rows = event_table(), []
    for event in events.names:
        found, estimates = events.of(event), events.estimates(event)
        rows.append(
            [
                event,
                next(iter(found.values())).unit,
                *(
                    (_range(estimates[library]) if library in found else
                     f"by ratio: {estimates[library].value:.3g}")
                    for library in NODES
                ),
                _range(events.pj(event)),
            ]
        )  # fmt: skip
    rows.append(["flip-flop, idle cycle", "clock", "", "", _range(events.clock_pj)])
    head = ("event, pJ at 28 nm", "of", *(f"by {each}" for each in NODES), "taken")
    return table(head, rows)


def energy_by_part() -> str:
    """Millijoules of a step of decoding by part, next to the paper's watts."""
    model = find_model(_7B)
    engine, paper = _events("kllm-a4"), engine_of("kllm-a4")
    contexts = (128, 1024, 4096)
    made = [engine.cost(model, Pass.decode(1, each)) for each in contexts]
    stated = [paper.cost(model, Pass.decode(1, each)) for each in contexts]
    rows = [
        [
            name,
            ORIGINS[name],
            *(_range(each.energy[name], 1e3) for each in made),
        ]
        for name in made[0].energy
    ]
    rows.append(["**total**", "", *(_range(each.joules, 1e3) for each in made)])
    rows.append(["total, by the paper's watts", "paper", *(_range(c.joules, 1e3) for c in stated)])
    head = ("part, mJ per token", "from", *(f"after {each}" for each in contexts))
    return table(head, rows)


def energy_by_lanes() -> str:
    """Energy of a token and area of the chip by lanes, engines and clock."""
    model, rows = find_model(_7B), []
    for lanes, engines, clock in (
        (4, 8, 500), (8, 8, 500), (16, 8, 500), (32, 8, 500), (64, 8, 500), (16, 2, 500),
        (16, 8, 250), (16, 8, 1000),
    ):  # fmt: skip
        changes = {
            "settings.energy": "events",
            "settings.set": [*_TOKENS, f"engines={engines}", f"lane.lanes={lanes}"],
            "constants.clock.value": clock,
        }
        engine = engine_of("kllm-a4", changes)
        cost = engine.cost(model, Pass.decode(1, 1024))
        chip = sum(each.value for name, each in cost.energy.items() if not name.startswith("dram"))
        rows.append(
            [
                str(lanes),
                str(engines),
                str(clock),
                f"({1 / cost.seconds:.0f})",
                _range(cost.joules, 1e3),
                f"{chip * 1e3:.3g}",
                _range(engine.area_range["netlists"], 1e6),
            ]
        )
    head = (
        "lanes", "engines", "MHz", "tokens/s", "mJ per token", "of them on the chip", "area, mm2",
    )  # fmt: skip
    return table(head, rows)


QUESTIONS: dict[str, Callable[[], str]] = {
    "sim_batch": batch_and_context,
    "sim_lanes": lanes_and_ports,
    "sim_context": long_contexts,
    "sim_memory": hbm_or_lpddr,
    "sim_queues": command_queues,
    "sim_functions": functions,
    "sim_attention": attention,
    "sim_pair": pair,
    "sim_windows": windows,
    "sim_events": events_at_28,
    "sim_energy": energy_by_part,
    "sim_energy_lanes": energy_by_lanes,
}


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    return print_tables(
        "sim.questions", __doc__ or "", QUESTIONS, PAGE, arguments,
        lambda name: QUESTIONS[name].__doc__ or "",
    )  # fmt: skip


if __name__ == "__main__":
    command.run("sim.questions", main)
