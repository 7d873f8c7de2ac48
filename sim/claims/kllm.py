"""KLLM's claims: Figures 1, 8, 9, 10 and 12, Table I.

The paper compares on LLaMA-7B to 70B and Mistral-7B, and states means. The claims here take the
models that all of its chips hold, 7B and 13B; ``by_model`` has 30B and 70B too. LLaMA-2 has the
sizes of LLaMA.
"""

import functools
from collections.abc import Callable

from golden.config import ConfigError
from golden.kllm.isa import Unit
from golden.markers import table
from sim.claims.claim import Claim
from sim.claims.kllm_table import CHIP, LANE_PARTS, LANES, area_of, power_of
from sim.claims.measure import energy_ratio, speed_ratio, token_joules, token_seconds
from sim.claims.product import kllm_product_cycles
from sim.constant import UNITS
from sim.engine import engine_of
from sim.model import find_model

_PAPER = "KLLM"
MODELS = ("llama-7b", "llama-13b", "mistral-7b")
_ALL_MODELS = ("llama-7b", "llama-13b", "llama-30b", "llama-2-70b", "mistral-7b")
_A4, _A3 = ("kllm-a4", "kllm-a4-flipflop"), ("kllm-a3", "kllm-a3-flipflop")
_A100 = ("a100-80gb-eager", "a100-80gb")

# Chip: names of its variants, then claimed speed and energy of A4, and of A3.
_FIGURE_8: dict[str, tuple[tuple[str, ...], tuple[float, float], tuple[float, float]]] = {
    "A100": (_A100, (8.66, 214.8), (9.67, 229.5)),
    "QuaRot": (("a100-quarot",), (3.44, 107.2), (3.85, 114.58)),
    "QServe": (("a100-qserve",), (2.63, 47.6), (2.94, 50.89)),
    "SpAtten": (("spatten",), (2.12, 2.79), (2.37, 2.98)),
    "MECLA": (("mecla", "mecla-w8a8"), (1.82, 1.53), (2.03, 1.63)),
    "OliVe": (("olive",), (1.37, 1.26), (1.53, 1.34)),
    "BitMoD": (("bitmod",), (1.45, 1.29), (1.62, 1.38)),
}


def by_model() -> str:
    """Speed of KLLM-A4 over each chip of Figure 8, model by model; empty where one has no room."""

    def cell(chip: str, model: str) -> str:
        try:
            return f"{speed_ratio(_A4[0], chip, (model,)):.2f}"
        except ConfigError:
            return ""

    chips = [name for names, *_ in _FIGURE_8.values() for name in names]
    rows = [[f"`{chip}`", *(cell(chip, model) for model in _ALL_MODELS)] for chip in chips]
    return table(["KLLM-A4 over", *_ALL_MODELS], rows)


_REASONS = {
    ("A100", "speed"): "an eager A100, bound by launches, comes near; an optimised one does not",
    ("A100", "energy"): "out of reach of any public energy of HBM",
    ("MECLA", "speed"): "MECLA reads 83.6 % less than FP16, by its abstract: 2.6 bits a weight",
    ("OliVe", "speed"): "both read 4 bits a weight; OliVe is at its memory's limit, KLLM is not",
    ("BitMoD", "speed"): "both read 4 bits a weight; BitMoD is at its memory's limit",
}


def _pair(measure: Callable[..., float], models: tuple[str, ...]) -> Callable[[str], float]:
    """A variant is ``ours / theirs``."""

    def of(variant: str) -> float:
        ours, theirs = variant.split(" / ")
        return measure(ours, theirs, models)

    return of


def _figure_8() -> list[Claim]:
    made = []
    for chip, (names, a4, a3) in _FIGURE_8.items():
        for ours, claimed, width in ((_A4, a4, "A4"), (_A3, a3, "A3")):
            variants = [f"{a} / {b}" for a in ours for b in names]
            for value, measure, what in (
                (claimed[0], speed_ratio, "speed"),
                (claimed[1], energy_ratio, "energy"),
            ):
                made.append(
                    Claim(
                        paper=_PAPER, figure="8", what=f"KLLM-{width} against {chip}, {what}",
                        claimed=value, variants=variants, measure=_pair(measure, MODELS),
                        reason=_REASONS.get((chip, what), ""),
                    )
                )  # fmt: skip
    atom = [f"{a} / a100-atom" for a in _A3]
    for value, measure, what in ((7.03, speed_ratio, "speed"), (150.21, energy_ratio, "energy")):
        made.append(
            Claim(
                paper=_PAPER, figure="8", what=f"KLLM-A3 against Atom, {what}", claimed=value,
                variants=atom, measure=_pair(measure, ("llama-2-7b",)),
            )
        )  # fmt: skip
    return made


def _product(variant: str) -> float:
    """One 4096 x 4096 product of one token: KLLM's cycles against a GPU's kernels."""
    ours, theirs = variant.split(" / ")
    from sim.claims.product import gpu_product_seconds, kllm_product_seconds

    return gpu_product_seconds(theirs) / kllm_product_seconds(ours)


def _slower_online(variant: str) -> float:
    """Share of the tokens per second that online outliers cost."""
    online, offline = variant.split(" / ")
    return 1 - 1 / speed_ratio(offline, online, ("llama-2-7b",))


def _gains_from_batch(hardware: str) -> float:
    """Whether a batch of 16 gives a tenth more tokens per second, and takes less energy each."""
    seconds = [token_seconds(hardware, "llama-2-7b", 64, batch) for batch in (1, 16)]
    joules = [token_joules(hardware, "llama-2-7b", 64, batch) for batch in (1, 16)]
    return float(1.1 * seconds[1] <= seconds[0] and joules[1] < joules[0])


# Figure 10 (b): rows of Table I that do each operation.
_OPERATIONS = {
    "Orizuru": (6.59, ("Orizuru",)),
    "dequantization": (4.32, ("Act Codebook Buffer",)),
    "quantization": (1.73, ("Clustering Unit",)),
    "the lanes: all but these three": (87.36, ("PE Lane",)),
}
_LANE_OPERATIONS = {"index concatenation": 33.46, "index distribution": 27.65, "reduction": 21.02}
_BUFFERS = ("Out Buffer", "Act Idx Buffer")
_FIGURE_10 = [
    f"{name} at {when}, {rows}"
    for name in _A4
    for when in ("all times", "work")
    for rows in ("all rows", "no buffers")
]


def _energy_share(names: tuple[str, ...]) -> Callable[[str], float]:
    """Per cent of a product's energy on the chip that rows of Table I take, by its watts.

    A row takes its watts all the time, or while the commands of its unit run.
    """

    def of(variant: str) -> float:
        chip, how = variant.split(" at ")
        when, rows = how.split(", ")
        whole, busy = kllm_product_cycles(chip)
        work = {
            "PE Lane": busy[Unit.MATMUL],
            "Clustering Unit": busy[Unit.QUANTIZE],
            "Orizuru": busy[Unit.QUANTIZE],
            "Functional Unit": 0.0,
        }
        joules = {
            name: power_of([name]).to("W") * (work.get(name, whole) if when == "work" else whole)
            for name in CHIP
            if rows == "all rows" or name not in _BUFFERS
        }
        return 100 * sum(joules[name] for name in names) / sum(joules.values())

    return of


def _dram_saved(variant: str) -> float:
    engine, model = engine_of(variant), find_model("llama-2-7b")
    layers = engine.weight_bytes(model) - 2.0 * model.hidden * model.vocabulary
    fp16 = 2.0 * (model.weights - model.hidden * model.vocabulary)
    return 100 * (1 - layers / fp16)


@functools.cache
def _floor(variant: str) -> tuple[float, float, float]:
    """Joules of a token of LLaMA-2-7B: DRAM at 16 bits, DRAM at 4 bits, FP16 MACs."""
    engine, model = engine_of("kllm-a3"), find_model("llama-2-7b")
    per_byte, per_mac = (
        float(value) * UNITS[unit] for value, unit in map(str.split, variant.split(", "))
    )
    elements = model.weights - model.hidden * model.vocabulary
    four = engine.weight_bytes(model) - 2.0 * model.hidden * model.vocabulary
    return 2.0 * elements * per_byte, four * per_byte, elements * per_mac


def _weights_saving(variant: str) -> float:
    before, after, macs = _floor(variant)
    return (before + macs) / (after + macs)


def _most_saving(variant: str) -> float:
    """The saving if index products took no energy at all."""
    _, after, macs = _floor(variant)
    return (after + macs) / after


# Of DRAM's bits as sim/memories/hbm2.json has them, of FP16 MACs as sim/hardware/asic-fp16.json.
_ENERGIES = [f"{dram} pJ/bit, {mac} pJ" for dram in (2.0, 3.9, 6.25) for mac in (0.5, 0.9, 1.5)]

CLAIMS: list[Claim] = [
    Claim(
        paper=_PAPER, figure="1", what="W4A4 product of 4096 x 4096 against A100 with look-ups",
        claimed=7.93, variants=[f"{a} / {b}" for a in _A4 for b in _A100], measure=_product,
        reason="the A100 reads 4-bit weights, looks up and multiplies in FP16",
    ),
    Claim(
        paper=_PAPER, figure="1", what="look-ups are 63 % of the A100's time", claimed=63, unit="%",
        reason="a profile of one kernel; no kernel of K-Means products is public",
    ),
    *_figure_8(),
    *(
        Claim(
            paper=_PAPER, figure="9", what=f"{name}: a batch of 16 pays", claimed=1, unit="",
            variants=[name], measure=_gains_from_batch, trend=True,
        )
        for name in ("kllm-a4", "kllm-a4-wide", "a100-80gb", "olive", "bitmod")
    ),
    Claim(
        paper=_PAPER, figure="10a", what="share that online outliers cost", claimed=0.07, unit="",
        variants=["kllm-a4 / kllm-s-a4"], measure=_slower_online,
        reason="the paper says 6 to 8 %",
    ),
    *(
        Claim(
            paper=_PAPER, figure="10b", what=f"energy of {name}", claimed=share, unit="%",
            reason="Table I has watts of whole lanes, and of their parts areas alone",
        )
        for name, share in _LANE_OPERATIONS.items()
    ),
    *(
        Claim(
            paper=_PAPER, figure="10b", what=f"energy of {name}", claimed=share, unit="%",
            variants=_FIGURE_10, measure=_energy_share(rows),
            reason=f"watts of Table I's {rows[0]}, all the time or while its commands run; "
            "with output and index buffers or without",
        )
        for name, (share, rows) in _OPERATIONS.items()
    ),
    Claim(
        paper=_PAPER, figure="12", what="HBM energy saved by 4-bit weights", claimed=75, unit="%",
        variants=["kllm-a3", "kllm-a4"], measure=_dram_saved,
    ),
    Claim(
        paper=_PAPER, figure="12", what="energy saved by 4-bit weights", claimed=2.49,
        variants=_ENERGIES, measure=_weights_saving,
        reason="DRAM and FP16 MACs alone; the paper states no energy of a MAC",
    ),
    Claim(
        paper=_PAPER, figure="12", what="energy saved by index products", claimed=20.98,
        variants=_ENERGIES, measure=_most_saving,
        reason="even where they take no energy, DRAM remains",
    ),
    Claim(
        paper=_PAPER, figure="12", what="energy saved by index-based functions", claimed=1.45,
        reason="the baseline's functional unit is not described",
    ),
    Claim(
        paper=_PAPER, figure="Table I", what="area of the chip", claimed=16.87, unit="mm2",
        variants=["sum of the rows"], measure=lambda _: area_of(CHIP),
        near=1.01, reason="the paper's own arithmetic",
    ),
    Claim(
        paper=_PAPER, figure="Table I", what="power of the chip", claimed=8.96, unit="W",
        variants=["sum of the rows"], measure=lambda _: power_of(CHIP),
        near=1.01, reason="the paper's own arithmetic: the rows sum to 8.39 W",
    ),
    Claim(
        paper=_PAPER, figure="Table I", what="area of the PE lanes", claimed=8.25, unit="mm2",
        variants=["16 times the parts of a lane"], measure=lambda _: LANES * area_of(LANE_PARTS),
        near=1.01, reason="the paper's own arithmetic",
    ),
]  # fmt: skip
