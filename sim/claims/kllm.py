"""KLLM's claims: Figures 1, 8, 9, 10 and 12, Table I.

The paper compares on LLaMA-7B to 70B and Mistral-7B. KLLM's programs have lengths of 14 bits, so
30B and 70B are left out, and LLaMA-2 has the sizes of LLaMA.
"""

import functools
from collections.abc import Callable

from sim.claims.claim import Claim
from sim.claims.measure import energy_ratio, speed_ratio, token
from sim.constant import UNITS
from sim.engine import engine_of
from sim.model import find_model

__all__ = ["CLAIMS"]

_PAPER = "KLLM"
MODELS = ("llama-7b", "llama-13b", "mistral-7b")
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
    seconds, joules = token(hardware, "llama-2-7b", 64)
    of_16, joules_of_16 = token(hardware, "llama-2-7b", 64, 16)
    return float(1.1 * of_16 <= seconds and joules_of_16 < joules)


# Watts of Table I's units: lane parts of one of 16 lanes.
_TABLE_1 = {
    "lanes": 5.73, "output buffer": 0.570, "index buffer": 0.540, "codebook buffer": 0.00211,
    "clustering": 0.710, "orizuru": 0.273, "functions": 0.563,
}  # fmt: skip
_AREA = (8.25, 4.61, 2.16, 0.00844, 0.211, 0.739, 0.889)
_FP16_MAC = 0.0905 / (32 * 500e6)  # joules: 32 MACs of a lane at 500 MHz


def _dram_saved(variant: str) -> float:
    engine, model = engine_of(variant), find_model("llama-2-7b")
    layers = engine.weight_bytes(model) - 2.0 * model.hidden * model.vocabulary
    fp16 = 2.0 * (model.weights - model.hidden * model.vocabulary)
    return 100 * (1 - layers / fp16)


@functools.cache
def _floor(picojoules: float) -> tuple[float, float, float]:
    """Joules of a token of LLaMA-2-7B: DRAM at 16 bits, DRAM at 4 bits, FP16 MACs of Table I."""
    engine, model = engine_of("kllm-a3"), find_model("llama-2-7b")
    per_byte = picojoules * UNITS["pJ/bit"]
    elements = model.weights - model.hidden * model.vocabulary
    four = engine.weight_bytes(model) - 2.0 * model.hidden * model.vocabulary
    return 2.0 * elements * per_byte, four * per_byte, elements * _FP16_MAC


def _weights_saving(variant: str) -> float:
    before, after, macs = _floor(float(variant.split()[0]))
    return (before + macs) / (after + macs)


def _most_saving(variant: str) -> float:
    """If index products took no energy at all."""
    _, after, macs = _floor(float(variant.split()[0]))
    return (after + macs) / after


_DRAM = ["2.0 pJ/bit", "3.9 pJ/bit", "6.25 pJ/bit"]
_PARTS = {  # Figure 10 (b)
    "index concatenation": 33.46,
    "index distribution": 27.65,
    "reduction": 21.02,
    "Orizuru": 6.59,
    "dequantization": 4.32,
    "quantization": 1.73,
}

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
            reason="sixteen times Table I's parts of a lane are 8.25 W, its row of lanes is 5.73 W",
        )
        for name, share in _PARTS.items()
    ),
    Claim(
        paper=_PAPER, figure="12", what="HBM energy saved by 4-bit weights", claimed=75, unit="%",
        variants=["kllm-a3", "kllm-a4"], measure=_dram_saved,
    ),
    Claim(
        paper=_PAPER, figure="12", what="energy saved by 4-bit weights", claimed=2.49,
        variants=_DRAM, measure=_weights_saving,
        reason="DRAM and the FP16 MACs of Table I alone",
    ),
    Claim(
        paper=_PAPER, figure="12", what="energy saved by index products", claimed=20.98,
        variants=_DRAM, measure=_most_saving,
        reason="even where they take no energy, DRAM remains",
    ),
    Claim(
        paper=_PAPER, figure="12", what="energy saved by index-based functions", claimed=1.45,
        reason="the baseline's functional unit is not described",
    ),
    Claim(
        paper=_PAPER, figure="Table I", what="area of the chip", claimed=16.87, unit="mm2",
        variants=["sum of the rows"], measure=lambda _: sum(_AREA),
        near=1.01, reason="the paper's own arithmetic",
    ),
    Claim(
        paper=_PAPER, figure="Table I", what="power of the chip", claimed=8.96, unit="W",
        variants=["sum of the rows"], measure=lambda _: sum(_TABLE_1.values()),
        near=1.01, reason="the paper's own arithmetic: the rows sum to 8.39 W",
    ),
]  # fmt: skip
