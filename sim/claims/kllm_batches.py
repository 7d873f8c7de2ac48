"""KLLM's energy trends: Figures 8 (b) and 9. The text states them without numbers.

The text names no batch of Figure 9. Here a batch is 1, 4 or 16 sequences, and 64 too where the text
says "large". Outputs have 2,048 words, as in Figure 8. The paper does not divide the energy of a
GPU into parts.
"""

import itertools
from collections.abc import Callable, Sequence

from sim.claims.claim import Claim
from sim.claims.measure import energy_parts, token_joules, token_seconds

_PAPER = "KLLM"
_MODEL, _WORDS = "llama-2-7b", 2048
_BATCHES = (1, 4, 16)
_SIMILAR = 1.1  # between speeds that the text calls similar
_KLLM = ("kllm-a4", "kllm-a4-wide", "kllm-a3")
_GPUS = ("a100-80gb", "a100-quarot", "a100-qserve", "a100-atom")
_ASICS = ("spatten", "mecla", "mecla-w8a8", "olive", "bitmod")


def _falls(values: Sequence[float]) -> bool:
    return all(after < before for before, after in itertools.pairwise(values))


def _energy_falls(hardware: str) -> float:
    """1 where each batch takes fewer joules per token, and the largest a tenth fewer than one."""
    joules = [token_joules(hardware, _MODEL, _WORDS, batch) for batch in _BATCHES]
    return float(_falls(joules) and 1.1 * joules[-1] < joules[0])


def _speed_rises(hardware: str) -> float:
    """1 where each batch gives a tenth more tokens per second than the one before."""
    seconds = [token_seconds(hardware, _MODEL, _WORDS, batch) for batch in _BATCHES]
    return float(all(1.1 * after < before for before, after in itertools.pairwise(seconds)))


def _memory_share_falls(hardware: str) -> float:
    """1 where each batch spends a smaller share of its energy in HBM, the largest a tenth less."""
    shares = []
    for batch in _BATCHES:
        parts = energy_parts(hardware, _MODEL, _WORDS, batch)
        shares.append(parts["dram"] / sum(parts.values()))
    return float(_falls(shares) and 1.1 * shares[-1] < shares[0])


def _memory_has_most(hardware: str) -> float:
    """1 where HBM takes more than half of the energy of one sequence."""
    parts = energy_parts(hardware, _MODEL, _WORDS, 1)
    return float(2 * parts["dram"] > sum(parts.values()))


def _chip_has_most(variant: str) -> float:
    """1 where SRAM and core take more energy than HBM."""
    hardware, batch = variant.split(" at ")
    parts = energy_parts(hardware, _MODEL, _WORDS, int(batch))
    return float(parts["sram"] + parts["core"] > parts["dram"])


def _similar(variant: str) -> float:
    """1 where the speeds of a batch are within a tenth."""
    chips, batch = variant.split(" at ")
    seconds = [token_seconds(each, _MODEL, _WORDS, int(batch)) for each in chips.split(" / ")]
    return float(1 / _SIMILAR < seconds[0] / seconds[1] < _SIMILAR)


def _trend(
    figure: str, what: str, variants: Sequence[str], measure: Callable[[str], float],
    reason: str = "",
) -> Claim:  # fmt: skip
    return Claim(
        paper=_PAPER, figure=figure, what=what, claimed=1, unit="", trend=True,
        variants=list(variants), measure=measure, reason=reason,
    )  # fmt: skip


_STEPS = "batches of 1, 4 and 16"
CLAIMS: list[Claim] = [
    _trend("8b", "KLLM: HBM takes most of the energy", _KLLM, _memory_has_most),
    _trend("8b", "the other ASICs: HBM takes most of the energy", _ASICS, _memory_has_most),
    _trend(
        "9", "KLLM: a batch saves energy per token", _KLLM, _energy_falls,
        f"{_STEPS}; Table I's vector memory holds one token, so weights are read for each",
    ),
    _trend("9", "the GPUs: a batch saves energy per token", _GPUS, _energy_falls, _STEPS),
    _trend("9", "the other ASICs: a batch saves energy per token", _ASICS, _energy_falls, _STEPS),
    _trend("9", "the GPUs: each larger batch is faster", _GPUS, _speed_rises, _STEPS),
    _trend(
        "9", "KLLM: a batch lowers HBM's share", _KLLM, _memory_share_falls,
        f"{_STEPS}; a tenth at least, which was added after a look at falls of 0.2 points",
    ),
    _trend("9", "the other ASICs: a batch lowers HBM's share", _ASICS, _memory_share_falls, _STEPS),
    _trend(
        "9", "KLLM: SRAM and core take more energy than HBM in large batches",
        [f"{each} at {batch}" for each in _KLLM for batch in (16, 64)], _chip_has_most,
        "kllm-a4-wide, which alone shares weights in a batch, has no figure of energy",
    ),
    _trend(
        "9", "the other ASICs: SRAM and core take more energy than HBM in large batches",
        [f"{each} at {batch}" for each in _ASICS for batch in (16, 64)], _chip_has_most,
        "each sequence reads its own K and V, and static energy grows",
    ),
    _trend(
        "9", "KLLM-S and KLLM are similarly fast in a batch",
        [f"kllm-a4 / kllm-s-a4 at {batch}" for batch in (4, 16)], _similar,
        "within 10 %, as the text has no number",
    ),
]  # fmt: skip
