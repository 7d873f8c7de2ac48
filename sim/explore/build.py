"""Command lines that build the RTL of a point.

A chip of KLLM is one block, ``kllm_accelerator``, with the point's lanes, ports and cache. Of
Oaken's, MILLION's, VQ-LLM's and QET's chips the RTL has the engines of one core: their matrix unit
is a paper's. GPUs and other baselines have no RTL here. Each command says what it leaves out.

No block is imported: tests/sim/test_explore_build.py compares the fields with the registry.
"""

import dataclasses
import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from golden.config import Config
from golden.kllm.config import MACHINES, MachineConfig
from golden.vqllm.config import NAMED
from sim.engine import Engine
from sim.engines.kllm import Kllm
from sim.engines.million import Million
from sim.engines.oaken import Oaken
from sim.engines.pair import Pair
from sim.engines.qet import Qet
from sim.engines.vqllm import VqLlm
from sim.explore.grid import Point
from sim.model import Model

_TOKENS_MAX = 32768  # of a sequence in the page tables of our RTL
_PAGES_MAX = 1 << 20
_STREAMS = 1 << 20  # most streams of a page table
_BUILD = "python -m hdl.build"
_CORE = "the engines of one core of {cores}: the matrix and vector units are a paper's"
# Entries of the two stages of the named configurations of qet_dequant_gemv.
QET_ENTRIES = {"smollm2": (128, 19), "llama": (3357, 770)}


@dataclasses.dataclass(frozen=True)
class Built:
    """Command lines that build a point, and what they leave out."""

    commands: tuple[str, ...]
    left_out: tuple[str, ...]


def _flat(fields: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _differing(config: Config, base: Config, before: str) -> list[str]:
    """``field=value`` of each field that is not that of ``base``."""
    known = dict(_flat(base.describe()))
    return [
        f"{before}{name}={_text(value)}"
        for name, value in _flat(config.describe())
        if value != known[name]
    ]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _command(block: str, *words: str) -> str:
    return shlex.join([*_BUILD.split(), block, *words])


def _tokens(point: Point) -> tuple[int, list[str]]:
    """Tokens of the longest sequence of a page table, and what is said of them."""
    wanted = 1 << (point.context + point.out - 1).bit_length()
    if wanted <= _TOKENS_MAX:
        return wanted, []
    said = f"sequences above {_TOKENS_MAX:,} tokens, the most of a page table of our RTL"
    return _TOKENS_MAX, [said]


def _pages(wanted: float) -> tuple[int, list[str]]:
    """Pages of a page table, a power of two, and what is said of them."""
    pages = 1 << (max(math.ceil(wanted), 64) - 1).bit_length()
    if pages <= _PAGES_MAX:
        return pages, []
    return _PAGES_MAX, [f"pages above {_PAGES_MAX:,}, the most of a page table of our RTL"]


def _kllm(engine: Kllm, model: Model, point: Point) -> Built:
    shape = engine.shape(model, point.context + point.out)
    machine, base = engine.machine_of(shape), MACHINES[engine.settings.machine]
    tokens, said = _tokens(point)
    page, streams = machine.cache.page_bytes, 2 * model.layers * machine.cache.kv.slots
    sequences = min(point.batch, machine.batch, max(1, _STREAMS // streams))
    if sequences < point.batch:
        said.append(f"sequences above {sequences} that are open at a time")
    # Each engine has as many pages as the configuration says.
    each = engine.kv_bytes(model, tokens) / page / machine.engines
    pages, more = _pages(sequences * each)
    cache = dataclasses.replace(
        machine.cache, sequences=sequences, layers=model.layers, pages=pages, max_tokens=tokens
    )
    wanted = dataclasses.replace(machine, cache=cache)
    units = engine.units_of(shape)
    built = {
        "build.counter": (units.counter, "select"),
        "build.macs": (units.macs, 32),
        "build.packet_words": (units.packet_words, 1),
        "cache.data_bits": (units.cache_bits, 512),
        "cache.lanes": (units.attention_lanes, 64),
        "cache.macs": (units.attention_macs, 64),
        "width": (units.function_width, 8),
        "functions": (units.functions, 1),
        "banks": (units.banks, 1),
        "queue": (units.queue, 4),
        "ahead": (units.ahead, False),
    }
    words = [f"{name}={_text(value)}" for name, (value, usual) in built.items() if value != usual]
    if not units.online:
        more.append("KLLM-S: the block has Orizuru, and the chip passes it by")
    changed = _differing(wanted, base, "machine.")
    name = engine.settings.machine
    config = [] if base == MachineConfig() else ["--config", name]
    command = _command("kllm_accelerator", *config, *changed, *words)
    return Built((command,), (*said, *more, "the memories next to the chip"))


def _oaken(engine: Oaken, model: Model, point: Point) -> Built:
    settings = engine.settings
    if settings.records == "none":
        return _none(engine, model, point)
    tokens, said = _tokens(point)
    pages, more = _pages(engine.kv_bytes(model, tokens) / settings.page_bytes)
    kv = [f"heads={model.kv_heads}", f"head_dim={model.head_size}", f"block={settings.block}"]
    table = [f"layers={model.layers}", "sequences=1", f"pages={pages}", f"max_tokens={tokens}"]
    table += [f"page_bytes={settings.page_bytes}"]
    names = ["data_bits", "burst_beats", "outstanding", "reads"]
    names += ["dense_beats", "sparse_beats", "scale_beats"]
    return Built(
        (
            _command(
                "oaken_quant_engine",
                f"lanes={settings.quant_lanes}",
                f"block={settings.block}",
                f"elements_max={model.kv_heads * model.head_size}",
            ),
            _command(
                "oaken_dequant_engine",
                f"lanes={settings.dequant_lanes}",
                f"block={settings.block}",
                f"data_bits={settings.data_bits}",
                f"blocks_max={-(-model.head_size // settings.block)}",
                f"stages={settings.stages}",
                f"scale_stages={settings.scale_stages}",
            ),
            _command(
                "oaken_kv_engine",
                *(f"mmu.cache.kv.{each}" for each in kv),
                *(f"mmu.cache.{each}" for each in table),
                *(f"mmu.{name}={getattr(settings, name)}" for name in names),
                f"lanes={settings.dequant_lanes}",
                f"scale_tokens={settings.scale_tokens}",
            ),
        ),
        (
            *said,
            *more,
            _CORE.format(cores=settings.cores),
            "sequences after the first",
            "quantizers of other lanes than the dequantizers in oaken_kv_engine",
        ),
    )


def _million(engine: Million, model: Model, point: Point) -> Built:
    settings = engine.settings
    tokens, said = _tokens(point)
    pages, more = _pages(engine.kv_bytes(model, tokens) / settings.page_bytes)
    found = engine.engine(model).config
    cache = dataclasses.replace(found, pages=pages, max_tokens=tokens)
    words = [f"cache.{name}={_text(value)}" for name, value in _flat(cache.describe())]
    words += [f"rate.{name}={value}" for name, value in _flat(settings.rate.describe())]
    words += [f"data_bits={settings.data_bits}", "kv_apart=true"]
    core = _CORE.format(cores=settings.cores)
    return Built(
        (_command("million_attention", *words),),
        (*said, *more, core, "sequences after the first", "exact rows in memory, not on the chip"),
    )


def _vqllm(engine: VqLlm, model: Model, point: Point) -> Built:
    settings = engine.settings
    vq = NAMED[settings.vq]
    widest = max(inputs for inputs, _ in model.linears.values())
    words = [f"cache.vq.{name}={_text(value)}" for name, value in _flat(vq.describe())]
    words.append(f"cache.lookups={max(1, settings.macs * vq.stages // vq.size)}")
    words += [f"cache.data_bits={settings.port_bits}"]
    widths = [f"batch={settings.batch}", f"columns={-(-widest // vq.size) * vq.size}"]
    if settings.method == "gemm":
        made = [_command("vq_gemm", *words, *widths, f"tokens={settings.tokens}")]
    else:
        made = [_command("vq_gemv", *(f"core.{each}" for each in (*words, *widths)))]
    tokens, said = _tokens(point)
    coded = engine.coded(model)
    if coded is not None:
        shape = [f"shape.{name}={_text(value)}" for name, value in _flat(coded.shape.describe())]
        shape = [each for each in shape if not each.startswith("shape.max_tokens=")]
        heads = model.kv_heads
        made.append(
            _command("vq_attention", *shape, f"shape.max_tokens={tokens}", f"books={heads}")
        )
        pq = [f"pq.{name}={value}" for name, value in _flat(coded.shape.pq.describe())]
        rate = f"rate.macs={settings.encode_macs}"
        made.append(_command("vq_kv_encoder", *pq, rate, f"books={heads}"))
    return Built(tuple(made), (*said, _CORE.format(cores=settings.cores)))


def _qet(engine: Qet, model: Model, point: Point) -> Built:
    settings = engine.settings
    name = "smollm2" if model.hidden < 1024 else "llama"
    usual = (settings.levels, settings.group, settings.entry_bits, settings.data_bits)
    first, second = QET_ENTRIES[name]
    entries = f"entries of this model's matrices: {name} has {first:,} and {second}"
    said = [
        _CORE.format(cores=settings.cores),
        f"{entries}, and no field of a command line sets them",
    ]
    if usual != (3, 8, 10, 512):
        said.append("levels, groups and bits of entries, which are those of the named one")
    if settings.method == "decode":
        said.append("the multipliers of the block, as the matrix unit multiplies")
    block = "qet_decoder" if settings.method == "decode" else "qet_dequant_gemv"
    return Built((_command(block, "--config", name),), tuple(said))


def _none(engine: Engine, model: Model, point: Point) -> Built:
    return Built((), ("no RTL: the chip is a paper's or a data sheet's",))


def _pair(engine: Pair, model: Model, point: Point) -> Built:
    # The part of the weights attends to nothing, so its page table has no tokens to speak of.
    alone = dataclasses.replace(point, context=1, out=1)
    found = [build(engine.weights, model, alone), build(engine.cache, model, point)]
    return Built(
        tuple(itertools.chain.from_iterable(each.commands for each in found)),
        tuple(dict.fromkeys(itertools.chain.from_iterable(each.left_out for each in found))),
    )


_BUILDERS: dict[type[Engine], Callable[[Any, Model, Point], Built]] = {
    Kllm: _kllm,
    Oaken: _oaken,
    Million: _million,
    VqLlm: _vqllm,
    Qet: _qet,
    Pair: _pair,
}


def build(engine: Engine, model: Model, point: Point) -> Built:
    """The command lines that write the RTL of a point that the engine can run."""
    return _BUILDERS.get(type(engine), _none)(engine, model, point)
