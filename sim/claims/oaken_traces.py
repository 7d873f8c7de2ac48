"""Oaken's Figure 14: what the text says of two traces. Its throughputs are a figure.

The claims need no trace. Requests have the mean lengths of the conversation trace, 1,155 tokens
and 211 words (``AzureLLMInferenceTrace_conv.csv``). The paper says that BurstGPT has longer
outputs, without a number. So "longer" is twice and four times as long. ``python -m sim.serve
--trace FILE`` runs a trace itself.
"""

from collections.abc import Callable

from golden.config import ConfigError
from sim.claims.claim import Claim
from sim.claims.measure import served
from sim.engine import check_fits, engine_of
from sim.model import find_model

_PAPER = "Oaken"
_DENSE, _SPARSE = "llama-2-13b", "mixtral-8x7b"
PROMPT, WORDS = 1155, 211
_BATCHES = (16, 32, 64, 128)
_LONGER = (2, 4)
# Oaken and the same chip with FP16 words, by both engines.
_PAIRS = ("oaken-lpddr / lpu", "oaken-lpddr / oaken-lpddr-fp16")


def _gain(chips: str, model: str, batch: int, longer: int = 1) -> float:
    """Tokens per second, ours by theirs."""
    ours, theirs = (
        served(each, model, batch, PROMPT, WORDS * longer) for each in chips.split(" / ")
    )
    return ours / theirs


def _ahead(longer: int) -> Callable[[str], float]:
    def of(variant: str) -> float:
        chips, batch = variant.split(" at ")
        return float(_gain(chips, _DENSE, int(batch), longer) > 1)

    return of


def _grows_with_outputs(model: str) -> Callable[[str], float]:
    """1 where our gain rises from the conversation's outputs to longer ones, and on."""

    def of(variant: str) -> float:
        chips, batch = variant.split(" at ")
        gains = [_gain(chips, model, int(batch), longer) for longer in (1, *_LONGER)]
        return float(gains[0] < gains[1] < gains[2])

    return of


def _grows_with_batch(model: str) -> Callable[[str], float]:
    """1 where our gain is larger at batch 128 than at 16."""

    def of(chips: str) -> float:
        return float(_gain(chips, model, _BATCHES[-1]) > _gain(chips, model, _BATCHES[0]))

    return of


def _gains_less_on_mixtral(variant: str) -> float:
    """1 where our gain is smaller with grouped queries than on Llama2-13B."""
    chips, batch = variant.split(" at ")
    return float(_gain(chips, _SPARSE, int(batch)) < _gain(chips, _DENSE, int(batch)))


def _little_on_mixtral(variant: str) -> float:
    """1 where our gain is below a tenth: the text says little to no gain, without a number."""
    chips, batch = variant.split(" at ")
    return float(_gain(chips, _SPARSE, int(batch)) < 1.1)


def _lacks_room(hardware: str) -> float:
    """1 where the memory does not hold Mixtral-8x7B and one token."""
    try:
        check_fits(engine_of(hardware), find_model(_SPARSE), 1, 1)
    except ConfigError:
        return 1.0
    return 0.0


def _at(names: tuple[str, ...], batches: tuple[int, ...] = _BATCHES) -> list[str]:
    return [f"{name} at {batch}" for name in names for batch in batches]


def _trend(
    what: str, variants: list[str], measure: Callable[[str], float], reason: str = ""
) -> Claim:
    return Claim(
        paper=_PAPER, figure="14", what=what, claimed=1, unit="", trend=True, variants=variants,
        measure=measure, reason=reason,
    )  # fmt: skip


_RIVALS = {
    "vLLM": "a100-vllm", "QServe": "a100-qserve-kv4", "KIVI": "a100-kivi",
    "KVQuant": "a100-kvquant", "Tender": "tender", "LPU": "lpu",
}  # fmt: skip
_REASONS = {
    ("Oaken-LPDDR", "vLLM"): "; HBM has 1.8 times the bandwidth of LPDDR",
    ("Oaken-LPDDR", "QServe"): "; HBM has 1.8 times the bandwidth of LPDDR",
    (
        "Oaken-LPDDR",
        "Tender",
    ): "; HBM has 1.8 times the bandwidth of LPDDR, and no prompt is padded",
    ("Oaken-HBM", "Tender"): "; Tender keeps 4.07 bits and Oaken 4.8, and no prompt is padded",
}


def _advantage(ours: str, note: str = "") -> list[Claim]:
    """Our chip against each rival of the figure that we have, on Llama2-13B."""
    return [
        _trend(
            f"Llama2-13B, {trace}: {ours} is ahead of {rival}",
            _at((f"{ours.lower()} / {chip}",)), _ahead(longer),
            reason + _REASONS.get((ours, rival), "") + note,
        )
        for trace, longer, reason in (
            ("conversation", 1, "mean lengths"),
            ("longer outputs", _LONGER[-1], "outputs four times as long"),
        )
        for rival, chip in _RIVALS.items()
    ]  # fmt: skip


CLAIMS: list[Claim] = [
    *_advantage("Oaken-LPDDR"),
    *_advantage("Oaken-HBM", "; added after a look at Oaken-LPDDR"),
    _trend(
        "Llama2-13B: longer outputs raise Oaken's gain", _at(_PAIRS), _grows_with_outputs(_DENSE),
        "outputs of the conversation, twice and four times as long",
    ),
    _trend("Mixtral-8x7B does not fit Oaken-HBM", ["oaken-hbm"], _lacks_room),
    _trend(
        "Mixtral-8x7B: Oaken gains less than on Llama2-13B", _at(_PAIRS), _gains_less_on_mixtral,
        "conversation",
    ),
    _trend(
        "Mixtral-8x7B: Oaken gains little over LPU", _at(_PAIRS), _little_on_mixtral,
        "conversation; below 10 %, as the text has no number",
    ),
    _trend(
        "Mixtral-8x7B: larger batches raise Oaken's gain", list(_PAIRS),
        _grows_with_batch(_SPARSE), "conversation, from batch 16 to 128",
    ),
    _trend(
        "Mixtral-8x7B: longer outputs raise Oaken's gain", _at(_PAIRS),
        _grows_with_outputs(_SPARSE), "outputs of the conversation, twice and four times as long",
    ),
    Claim(
        paper=_PAPER, figure="14", what="Mixtral-8x7B: Tender gains little over FP16", claimed=1,
        unit="", trend=True,
        reason="its 93 GB exceed Tender's 80 GB; the paper pairs chips, `sim` does not",
    ),
    Claim(
        paper=_PAPER, figure="14", what="padded prompts leave Tender's arrays idle", claimed=1,
        unit="", trend=True, reason="`sim` pads no prompts; the text has no number",
    ),
    Claim(
        paper=_PAPER, figure="14", what="throughput on BurstGPT", claimed=1, unit="", trend=True,
        reason="the trace is not at hand; `sim.serve` runs a trace by its path",
    ),
]  # fmt: skip
