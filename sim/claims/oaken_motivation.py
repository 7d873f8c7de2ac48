"""Oaken's section 3: Figures 3, 4 and 5. The text states trends and no numbers.

The paper draws the figures on an A100 and on "an existing LLM-customized accelerator", LPU. The
text names no batch of Figures 4 and 5, so the variants have batches of Figure 11.
"""

from collections.abc import Callable

from golden.config import ConfigError
from sim.claims.claim import Claim
from sim.claims.measure import served
from sim.cost import Spent
from sim.engine import Engine, check_fits, engine_of
from sim.engines.gpu import Gpu
from sim.matrix import MatrixEngine
from sim.model import find_model
from sim.work import Pass

_PAPER = "Oaken"
_MODEL = "llama-2-13b"
_TOKENS = 1024  # of a prompt, and of an output
_BATCHES = (16, 32, 64)
# The paper's GPU and its accelerator, and the same accelerator by our other engine.
_CORES = ("a100-80gb", "lpu-hbm", "lpu", "oaken-hbm-fp16")


def core_use(engine: Engine, spent: Spent) -> float:
    """Share of the products that the cores could do in FP16 while an operation lasts."""
    if isinstance(engine, Gpu):
        peak = engine.base("peak_16") / 2
    elif isinstance(engine, MatrixEngine):
        peak = engine.base("peak") / 2
    else:
        peak = engine.base("clock") * engine.base("matrix_16")
    return spent.macs / (peak * spent.seconds)


def _whole(engine: Engine, step: Pass) -> Spent:
    """A pass as one operation."""
    cost = engine.cost(find_model(_MODEL), step)
    return Spent("pass", cost.seconds, {}, {}, sum(each.macs for each in cost.spent))


def _fills_more(batch: int) -> Callable[[str], float]:
    """1 where a prefill uses more of the cores than a step of decoding."""

    def of(hardware: str) -> float:
        engine = engine_of(hardware)
        check_fits(engine, find_model(_MODEL), batch, 2 * _TOKENS)
        prefill, step = Pass.prefill(batch, _TOKENS), Pass.decode(batch, _TOKENS)
        uses = [core_use(engine, _whole(engine, each)) for each in (prefill, step)]
        return float(uses[0] > uses[1])

    return of


def _step_is_longer(variant: str) -> float:
    """1 where a step of a batch lasts longer than a step of one sequence."""
    hardware, batch = variant.split(" at ")
    engine = engine_of(hardware)
    check_fits(engine, find_model(_MODEL), int(batch), 2 * _TOKENS)
    alone, many = (_whole(engine, Pass.decode(n, _TOKENS)) for n in (1, int(batch)))
    return float(many.seconds > alone.seconds)


def _attention_wastes_most(variant: str) -> float:
    """1 where attention leaves more core time unused than all other operations together."""
    hardware, batch = variant.split(" at ")
    engine, model = engine_of(hardware), find_model(_MODEL)
    check_fits(engine, model, int(batch), _TOKENS)
    unused = {True: 0.0, False: 0.0}
    for each in engine.cost(model, Pass.decode(int(batch), _TOKENS)).spent:
        idle = each.seconds * (1 - core_use(engine, each)) if each.seconds else 0.0
        unused[each.name == "attention"] += idle
    return float(unused[True] > unused[False])


def _attention_uses_least(variant: str) -> float:
    """1 where attention uses less of the cores than each matrix product."""
    hardware, batch = variant.split(" at ")
    engine, model = engine_of(hardware), find_model(_MODEL)
    check_fits(engine, model, int(batch), _TOKENS)
    spent = engine.cost(model, Pass.decode(int(batch), _TOKENS)).spent
    uses = {each.name: core_use(engine, each) for each in spent if each.macs}
    attention = uses.pop("attention")
    return float(attention < min(uses.values()))


def _throughput(hardware: str, model: str, batch: int) -> float:
    return served(hardware, model, batch, _TOKENS, _TOKENS)


def _ahead(model: str) -> Callable[[str], float]:
    """1 where the first chip gives more tokens per second, in waves where need be."""

    def of(variant: str) -> float:
        chips, batch = variant.split(" at ")
        ours, theirs = (_throughput(each, model, int(batch)) for each in chips.split(" / "))
        return float(ours > theirs)

    return of


def _sublinear(variant: str) -> float:
    """1 where twice the batch gives more tokens per second, but less than twice as many."""
    hardware, batch = variant.split(" at ")
    model, size = find_model(_MODEL), int(batch)
    check_fits(engine_of(hardware), model, 2 * size, 2 * _TOKENS)
    gain = _throughput(hardware, _MODEL, 2 * size) / _throughput(hardware, _MODEL, size)
    return float(1 < gain < 2)


def _holds(variant: str, model: str) -> bool:
    hardware, batch = variant.split(" at ")
    try:
        check_fits(engine_of(hardware), find_model(model), int(batch), 2 * _TOKENS)
    except ConfigError:
        return False
    return True


def _cache_dominates(variant: str) -> float:
    """1 where K and V take more of the memory than the weights, which a batch does not change."""
    model, batch = variant.split(" at ")
    engine, found = engine_of("lpu"), find_model(model)
    return float(int(batch) * engine.kv_bytes(found, 2 * _TOKENS) > engine.weight_bytes(found))


Changes = dict[str, int | bool]
# Chip: 4-bit weights of this chip or with these changes, and a 4-bit cache.
_FOUR_BITS: dict[str, tuple[tuple[str, Changes], tuple[str, Changes]]] = {
    "a100-80gb": (
        ("a100-80gb-int4", {}),
        ("a100-80gb", {"settings.kv_bits": 4, "settings.kv_scale": 32}),
    ),
    "lpu": (
        ("lpu", {"settings.weight_bits": 4, "settings.weight_group": 128}),
        ("lpu", {"settings.kv_bits": 4, "settings.attention_16": True}),
    ),
    "oaken-hbm-fp16": (("oaken-hbm-fp16", {"settings.weight_bits": 4}), ("oaken-hbm", {})),
    "oaken-lpddr-fp16": (("oaken-lpddr-fp16", {"settings.weight_bits": 4}), ("oaken-lpddr", {})),
}


def _step_seconds(hardware: str, changes: Changes, batch: int) -> float:
    """The seconds of a step of decoding in the middle of an output."""
    engine, model = engine_of(hardware, changes), find_model(_MODEL)
    check_fits(engine, model, batch, 2 * _TOKENS)
    return engine.cost(model, Pass.decode(batch, 3 * _TOKENS // 2)).seconds


def _cache_gains_more(variant: str) -> float:
    """1 where a 4-bit cache shortens a step by more than 4-bit weights do."""
    hardware, batch = variant.split(" at ")
    weights, cache = (_step_seconds(*each, int(batch)) for each in _FOUR_BITS[hardware])
    return float(cache < weights)


def _trend(
    figure: str, what: str, variants: list[str], measure: Callable[[str], float], reason: str = ""
) -> Claim:
    return Claim(
        paper=_PAPER, figure=figure, what=what, claimed=1, unit="", trend=True, variants=variants,
        measure=measure, reason=reason,
    )  # fmt: skip


def _at(names: tuple[str, ...], batches: tuple[int, ...] = _BATCHES) -> list[str]:
    return [f"{name} at {batch}" for name in names for batch in batches]


CLAIMS: list[Claim] = [
    _trend(
        "3a", "one request: prefill uses more of the cores than generation", list(_CORES),
        _fills_more(1), "a share of the FP16 peak; the paper counts cores that work",
    ),
    _trend(
        "3b", "a batch of 16: prefill uses more of the cores than generation", list(_CORES),
        _fills_more(16), "a share of the FP16 peak; the paper counts cores that work",
    ),
    _trend(
        "3b", "a step of a batch lasts longer than that of one request",
        _at(_CORES, (16,)), _step_is_longer,
    ),
    _trend(
        "3c", "attention uses less of the A100's cores than each product",
        _at(("a100-80gb", "a100-vllm")), _attention_uses_least, "after 1K tokens",
    ),
    _trend(
        "3c", "attention leaves most of the A100's unused core time",
        _at(("a100-80gb", "a100-vllm")), _attention_wastes_most,
        "after 1K tokens; at batch 16 the products wait longer for their weights",
    ),
    _trend(
        "4a", "Llama2-13B: throughput rises less than the batch",
        [*_at(("lpu-hbm",), (4, 8, 16)), *_at(("lpu",), (4, 8, 16, 32, 64))], _sublinear,
        "from each batch to twice as many",
    ),
    _trend(
        "4a", "Llama2-13B: LPU with HBM is ahead of LPDDR",
        _at(("lpu-hbm / lpu", "oaken-hbm-fp16 / oaken-lpddr-fp16"), (8, 16, 32)), _ahead(_MODEL),
    ),
    _trend(
        "4b", "OPT-30B: HBM is out of memory",
        _at(("lpu-hbm", "oaken-hbm-fp16")), lambda each: float(not _holds(each, "opt-30b")),
        "60 GB of weights and 2.8 GB a sequence; the text does not name the cells",
    ),
    _trend(
        "4b", "OPT-30B: LPDDR holds the batch",
        _at(("lpu", "oaken-lpddr-fp16")), lambda each: float(_holds(each, "opt-30b")),
        "the text does not name the cells",
    ),
    _trend(
        "4b", "OPT-30B: LPDDR is ahead of HBM in large batches",
        _at(("lpu / lpu-hbm", "oaken-lpddr-fp16 / oaken-hbm-fp16"), (32, 64)), _ahead("opt-30b"),
        "HBM in waves of as many as it holds",
    ),
    _trend(
        "5a", "K and V take more memory than the weights",
        _at(("llama-2-7b", "llama-2-13b", "opt-30b"), (64, 128)), _cache_dominates,
        "FP16, 2K tokens; the text names neither model nor batch",
    ),
    _trend(
        "5b", "a 4-bit cache gains more than 4-bit weights",
        [
            *_at(("a100-80gb", "oaken-hbm-fp16"), (8, 16, 32)),
            *_at(("lpu", "oaken-lpddr-fp16")),
        ],
        _cache_gains_more,
        "of a step in the middle of 1K:1K, Llama2-13B; up to batch 16 the weights have more bytes",
    ),
]  # fmt: skip
