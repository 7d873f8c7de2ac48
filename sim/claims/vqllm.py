"""VQ-LLM's claims that need no GPU, and those that do: abstract, sections II, III and VI.

The paper measures CUDA kernels. An element-wise method of as many bits, on the same memory, takes
at least the time of its bytes. So a product with vectors is close to it where our engines take
little more than the time of their bytes.
"""

from collections.abc import Callable

from sim.claims.claim import Claim
from sim.engine import engine_of
from sim.model import find_model
from sim.work import Pass

_PAPER = "VQ-LLM"
_MODEL = "llama-7b"
_CHIPS = ("vqllm-gptvq2-cq2", "vqllm-aqlm2x8", "vqllm-aqlm2x8-cq4")
_CLOSE = 1.1  # the text has no number
# Table II: elements of a vector, entries that a code names, stages.
_SHAPES = {
    "QuiP#-4": (8, 65536, 2), "AQLM-3": (8, 4096, 2), "GPTVQ-2": (4, 256, 1), "CQ-4": (2, 256, 1),
    "CQ-2": (4, 256, 1),
}  # fmt: skip
_RATIOS = {"QuiP#-4": 25.0, "AQLM-3": 18.75, "GPTVQ-2": 12.5, "CQ-4": 25.0, "CQ-2": 12.5}
_GPU = "a counter of a GPU's profiler; no GPU's caches are modelled here"


def _share_of_memory(variant: str) -> float:
    """Per cent of the bytes in memory that weights, K and V take, all in FP16.

    Activations are those of a pass over the whole prompt: what the widest operation of a layer
    reads and writes.
    """
    batch, tokens = (int(each) for each in variant.split(" x "))
    model = find_model(_MODEL)
    kept = 2.0 * (model.weights + batch * model.cached_elements(tokens))
    widest = max(model.hidden + 2 * model.intermediate, 4 * model.hidden)
    passing = 2.0 * batch * (tokens * (model.hidden + widest) + model.vocabulary)
    return 100 * kept / (kept + passing)


def _close(place: str) -> Callable[[str], float]:
    """1 where our engines take at most a tenth more than the time of their bytes."""

    def of(variant: str) -> float:
        chip, rest = variant.split(" at ")
        batch, context = (int(each) for each in rest.split(" x "))
        spent = engine_of(chip).cost(find_model("llama-2-7b"), Pass.decode(batch, context)).spent
        names = ("qkv", "o", "gate_up", "down") if place == "products" else ("attention",)
        chosen = [each for each in spent if each.name in names]
        seconds = sum(each.seconds for each in chosen)
        return float(seconds <= _CLOSE * sum(each.limits["memory"] for each in chosen))

    return of


def _ratio(name: str) -> float:
    """Per cent of 16 bits that the codes of a vector take."""
    size, entries, stages = _SHAPES[name]
    return 100 * stages * (entries - 1).bit_length() / size / 16


def _claim(figure: str, what: str, claimed: float, unit: str, reason: str) -> Claim:
    return Claim(paper=_PAPER, figure=figure, what=what, claimed=claimed, unit=unit, reason=reason)


def _trend(what: str, variants: list[str], measure: Callable[[str], float], reason: str) -> Claim:
    return Claim(
        paper=_PAPER, figure="abstract", what=what, claimed=1, unit="", trend=True,
        variants=variants, measure=measure, reason=reason,
    )  # fmt: skip


CLAIMS: list[Claim] = [
    _claim(
        "abstract", "latency saved by fused kernels, at least", 64.36, "%",
        "64.36 to 99.1 % of kernels of a GPU; docs/vqllm-claims.md has our engines' figures",
    ),
    _claim(
        "abstract", "latency saved by fused kernels, at most", 99.1, "%",
        "64.36 to 99.1 % of kernels of a GPU; docs/vqllm-claims.md has our engines' figures",
    ),
    _trend(
        "products take about as long as AWQ's at equal bits",
        [f"{chip} at {batch} x 1024" for chip in _CHIPS[:2] for batch in (1, 16)],
        _close("products"),
        "on our engines, against the bytes of any element-wise method; look-ups bind; written "
        "after a look at two operations",
    ),
    _trend(
        "attention takes about as long as QoQ's at equal bits",
        [f"{chip} at {batch} x 1024" for chip in (_CHIPS[0], _CHIPS[2]) for batch in (1, 16)],
        _close("attention"),
        "on our engines, against the bytes of any element-wise method; a batch of one does not "
        "fill them; written after a look at this operation",
    ),
    Claim(
        paper=_PAPER, figure="text", what="weights, K and V take more than 95 % of the memory",
        claimed=1, unit="", trend=True,
        variants=["1 x 1024", "1 x 4096", "16 x 1024", "16 x 4096"],
        measure=lambda variant: float(_share_of_memory(variant) > 95),
        reason="LLaMA-7B in FP16; others are activations of a pass over the whole prompt",
    ),
    _claim("text", "hits of the L1 cache with codebooks in memory", 12.45, "%", _GPU),
    _claim("text", "fall of the processors' use with codebooks in shared memory", 30, "%", _GPU),
    _claim(
        "text", "shared memory takes so many times a register with exchanges", 5, "x",
        "a ratio of a GPU's latencies; docs/vqllm-area.md has ours",
    ),
    *(
        Claim(
            paper=_PAPER, figure="Table II", what=f"{name}: codes in per cent of 16 bits",
            claimed=claimed, unit="%", variants=[name], measure=_ratio, near=1.001,
            reason="codes alone; docs/vqllm-claims.md counts codebooks and scales too",
        )
        for name, claimed in _RATIOS.items()
    ),
]  # fmt: skip
