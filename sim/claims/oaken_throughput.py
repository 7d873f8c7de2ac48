"""Oaken's Figure 11: what the text says of its bars. The bars themselves are a figure.

Requests bring 1,024 tokens and make as many, 16 to 256 at once. A chip whose memory does not hold
them all takes them in waves. The claims were written after a look at the throughputs.
"""

from collections.abc import Callable

from golden.config import ConfigError
from sim.claims.claim import Claim
from sim.claims.measure import served
from sim.engine import check_fits, engine_of
from sim.model import find_model

_PAPER = "Oaken"
_TOKENS = 1024
_BATCHES = (16, 32, 64, 128, 256)
_GPUS = ("a100-vllm", "a100-kvquant", "a100-kivi", "a100-qserve-kv4")
_DENSE = ("llama-2-7b", "llama-2-13b")
_LOOK = "written after a look at the throughputs"
_LITTLE = 1.1  # a gain that the text calls none, as it has no number


def _rate(chip: str, model: str, batch: int) -> float:
    return served(chip, model, batch, _TOKENS, _TOKENS)


def _last_gain(chip: str, model: str) -> float:
    """Tokens per second at the largest batch, by those at half of it."""
    return _rate(chip, model, _BATCHES[-1]) / _rate(chip, model, _BATCHES[-2])


def _saturates(variant: str) -> float:
    """1 where the last doubling of the batch gains less than a tenth."""
    chip, model = variant.split(" with ")
    return float(_last_gain(chip, model) < _LITTLE)


def _scales_on(variant: str) -> float:
    """1 where the last doubling of the batch gains ours more than theirs."""
    chips, model = variant.split(" with ")
    ours, theirs = (_last_gain(chip, model) for chip in chips.split(" / "))
    return float(ours > theirs)


def _ahead(variant: str) -> float:
    chips, place = variant.split(" with ")
    model, batch = place.split(" at ")
    ours, theirs = (_rate(chip, model, int(batch)) for chip in chips.split(" / "))
    return float(ours > theirs)


def _holds(chip: str, model: str, batch: int) -> bool:
    try:
        check_fits(engine_of(chip), find_model(model), batch, 2 * _TOKENS)
    except ConfigError:
        return False
    return True


def _refuses(variant: str) -> float:
    """1 where the memory does not hold the batch at once."""
    chip, place = variant.split(" with ")
    model, batch = place.split(" at ")
    return float(not _holds(chip, model, int(batch)))


def _gains_less(variant: str) -> float:
    """1 where quantized K and V gain less on the second model than on the first one."""
    models, batch = variant.split(" at ")
    gains = [
        _rate("oaken-lpddr", model, int(batch)) / _rate("oaken-lpddr-fp16", model, int(batch))
        for model in models.split(" > ")
    ]
    return float(gains[1] < gains[0])


def _trend(
    what: str, variants: list[str], measure: Callable[[str], float], reason: str = _LOOK
) -> Claim:
    return Claim(
        paper=_PAPER, figure="11", what=what, claimed=1, unit="", trend=True, variants=variants,
        measure=measure, reason=reason,
    )  # fmt: skip


CLAIMS: list[Claim] = [
    _trend(
        "GPUs saturate: from batch 128 to 256 they gain less than a tenth",
        [f"{chip} with {model}" for chip in _GPUS for model in _DENSE], _saturates,
    ),
    _trend(
        "Tender does not scale to large batches", [f"tender with {model}" for model in _DENSE],
        _saturates, f"{_LOOK}; from batch 128 to 256, less than a tenth",
    ),
    _trend(
        "Oaken-LPDDR scales on where the GPUs saturate",
        [f"oaken-lpddr / {chip} with {model}" for chip in _GPUS for model in _DENSE], _scales_on,
    ),
    _trend(
        "Oaken-HBM is ahead of all others on small models in small batches",
        [
            f"oaken-hbm / {chip} with llama-2-7b at {batch}"
            for chip in (*_GPUS, "tender", "lpu", "oaken-lpddr")
            for batch in (16, 32)
        ],
        _ahead,
    ),
    _trend(
        "Oaken-HBM does not hold Mixtral-8x7B and Llama2-70B",
        ["oaken-hbm with mixtral-8x7b at 1", "oaken-hbm with llama-2-70b at 1"], _refuses,
    ),
    _trend(
        "Oaken-HBM does not hold large batches at once",
        [f"oaken-hbm with {model} at 256" for model in _DENSE], _refuses,
    ),
    _trend(
        "Oaken-LPDDR holds the batch of 256",
        [f"oaken-lpddr with {model} at 256" for model in (*_DENSE, "mistral-7b")],
        lambda variant: 1.0 - _refuses(variant),
    ),
    _trend(
        "grouped heads leave less to gain from quantized K and V",
        [f"llama-2-7b > mistral-7b at {batch}" for batch in _BATCHES], _gains_less,
    ),
    _trend(
        "Mistral-7B: Oaken-LPDDR scales on in large batches, the GPUs less",
        [f"oaken-lpddr / {chip} with mistral-7b" for chip in _GPUS], _scales_on,
    ),
]  # fmt: skip
