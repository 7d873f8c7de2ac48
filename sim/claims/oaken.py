"""Oaken's claims: Figures 11, 12 and 13, and the power."""

from collections.abc import Callable

from golden.config import ConfigError
from sim.claims.claim import Claim, geomean
from sim.claims.measure import decode_step, served
from sim.constant import Quantity
from sim.engine import check_fits, engine_of
from sim.model import find_model

_PAPER = "Oaken"
# Figure 11; larger models run on two GPUs there, and are left out.
MODELS = ("llama-2-7b", "llama-2-13b", "opt-6.7b", "opt-13b", "mistral-7b")


def _throughput(batch: int) -> Callable[[str], float]:
    """A variant is ``ours / theirs``: geometric mean over the models that both hold, 1K:1K."""

    def of(variant: str) -> float:
        ours, theirs = variant.split(" / ")
        ratios = []
        for model in MODELS:
            try:
                mine = served(ours, model, batch, 1024, 1024)
                ratios.append(mine / served(theirs, model, batch, 1024, 1024))
            except ConfigError:
                continue  # the paper omits what does not fit
        if not ratios:
            raise ConfigError(f"{variant}: no model of Figure 11 fits both")
        return geomean(ratios)

    return of


def _attention(batch: int) -> Callable[[str], float]:
    """Per cent that ours takes less time in attention than theirs, at 1K tokens."""

    def of(variant: str) -> float:
        ours, theirs = variant.split(" / ")
        seconds = []
        for name in (ours, theirs):
            cost = decode_step(name, "llama-2-7b", batch, 1536)
            seconds.append(sum(each.seconds for each in cost.spent if each.name == "attention"))
        return 100 * (1 - seconds[0] / seconds[1])

    return of


def _busy(*resources: str) -> Callable[[str], float]:
    """Per cent of a step in which engines work, batch 64 at 1,536 tokens."""

    def of(hardware: str) -> float:
        cost = decode_step(hardware, "llama-2-7b", 64, 1536)
        busy = sum(each.limits.get(name, 0.0) for each in cost.spent for name in resources)
        return 100 * busy / cost.seconds

    return of


def _fits(context: int) -> Callable[[str], float]:
    """1 where the chip holds 16 sequences of Llama2-13B of so many tokens."""

    def of(hardware: str) -> float:
        try:
            check_fits(engine_of(hardware), find_model("llama-2-13b"), 16, context)
        except ConfigError:
            return 0.0
        return 1.0

    return of


def _not(measure: Callable[[str], float]) -> Callable[[str], float]:
    return lambda variant: 1.0 - measure(variant)


def _ahead(context: int) -> Callable[[str], float]:
    """1 where ours gives more tokens per second than theirs, Llama2-13B, batch 16, 1:1."""

    def of(variant: str) -> float:
        ours, theirs = variant.split(" / ")
        half = context // 2
        mine, other = (served(name, "llama-2-13b", 16, half, half) for name in (ours, theirs))
        return float(mine > other)

    return of


CLAIMS: list[Claim] = [
    Claim(
        paper=_PAPER, figure="11", what="Oaken-LPDDR against vLLM, batch 256", claimed=1.79,
        variants=["oaken-lpddr / a100-vllm"], measure=_throughput(256),
    ),
    Claim(
        paper=_PAPER, figure="11", what="Oaken-LPDDR against QServe, batch 256", claimed=1.58,
        variants=["oaken-lpddr / a100-qserve", "oaken-lpddr / a100-qserve-kv4"],
        measure=_throughput(256),
        reason="the paper switches QServe's weights and activations back to 16 bits",
    ),
    Claim(
        paper=_PAPER, figure="12b", what="attention takes less time than on LPU", claimed=55.0,
        unit="%", variants=["oaken-lpddr / lpu", "oaken-lpddr / oaken-lpddr-fp16"],
        measure=_attention(64),
    ),
    *(
        Claim(
            paper=_PAPER, figure="12b", what=f"{what}, share of the latency at batch 64",
            claimed=share, unit="%", variants=["oaken-lpddr"], measure=_busy(*names),
            reason="time of the engines, all hidden by the memory; written after a first look",
        )
        for what, share, names in (
            ("quantization", 1.29, ("quantize", "append")),
            ("dequantization", 3.23, ("dequantize",)),
        )
    ),
    Claim(
        paper=_PAPER, figure="13", what="Oaken-HBM holds 16K", claimed=1, unit="", trend=True,
        variants=["oaken-hbm"], measure=_fits(16384),
        reason="26 GB of weights and 64.7 GB of K and V at the paper's own 4.82 bits exceed 80 GB",
    ),
    Claim(
        paper=_PAPER, figure="13", what="Oaken-HBM does not hold 32K", claimed=1, unit="",
        trend=True, variants=["oaken-hbm"], measure=_not(_fits(32768)),
    ),
    Claim(
        paper=_PAPER, figure="13", what="Oaken-LPDDR holds 32K", claimed=1, unit="", trend=True,
        variants=["oaken-lpddr"], measure=_fits(32768),
    ),
    Claim(
        paper=_PAPER, figure="13", what="QServe is ahead of Oaken-LPDDR at 4K", claimed=1, unit="",
        trend=True, variants=["a100-qserve / oaken-lpddr", "a100-qserve-kv4 / oaken-lpddr"],
        measure=_ahead(4096),
    ),
    Claim(
        paper=_PAPER, figure="13", what="vLLM and QServe are ahead of Oaken-HBM at 4K", claimed=1,
        unit="", trend=True, variants=["a100-vllm / oaken-hbm", "a100-qserve-kv4 / oaken-hbm"],
        measure=_ahead(4096), reason="added after a review of the list",
    ),
    Claim(
        paper=_PAPER, figure="13", what="Oaken-HBM is ahead of QServe at 16K", claimed=1, unit="",
        trend=True, variants=["oaken-hbm / a100-qserve", "oaken-hbm / a100-qserve-kv4"],
        measure=_ahead(16384), reason="in two waves, as the memory does not hold 16 at once",
    ),
    Claim(
        paper=_PAPER, figure="text", what="power below an A100's 400 W", claimed=44.3, unit="%",
        variants=["222.7 W"],
        measure=lambda _: 100 * (1 - Quantity(222.7, "W") / Quantity(400, "W")),
        near=1.01, reason="the paper's own arithmetic",
    ),
]  # fmt: skip
