"""MILLION's claims: Table IV and Figure 7, on an A40; VQ-LLM's abstract."""

from golden.config import ConfigError
from sim.claims.claim import Claim
from sim.constant import Quantity
from sim.engine import check_fits, engine_of
from sim.model import find_model
from sim.run import decoding

_CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
# ms per token of LLaMA-2-7B on an A40 after a prompt of so many tokens, 100 tokens made; None: OOM
TABLE_4: dict[str, tuple[float | None, ...]] = {
    "a40": (32.53, 35.64, 42.04, 54.83, 80.49, 132.97),
    "a40-kivi": (46.69, 46.88, 46.92, 47.86, None, None),
    "a40-kvquant": (75.73, 73.92, 75.34, 74.90, 78.17, 90.16),
    "a40-million": (30.36, 31.57, 34.05, 38.34, 46.53, 63.41),
}


def _token(variant: str) -> Quantity:
    name, context = variant.split(" at ")
    found = decoding(engine_of(name), find_model("llama-2-7b"), 1, int(context), 100)
    return Quantity(found.seconds / 100, "s")


def _refused(variant: str) -> float:
    """1 where the memory does not hold the prompt and its buffers."""
    name, context = variant.split(" at ")
    try:
        check_fits(engine_of(name), find_model("llama-2-7b"), 1, int(context) + 100)
    except ConfigError:
        return 1.0
    return 0.0


def _speedup(variant: str) -> float:
    """The speed-up of a token at 32K, baseline by MILLION."""
    ours, theirs = variant.split(" / ")
    return _token(f"{theirs} at 32768") / _token(f"{ours} at 32768")


def _table_4() -> list[Claim]:
    made = []
    for name, cells in TABLE_4.items():
        for context, cell in zip(_CONTEXTS, cells, strict=True):
            what = f"{name}: a token after {context // 1024}K"
            if cell is None:
                made.append(
                    Claim(
                        paper="MILLION", figure="Table IV", what=f"{what}: out of memory",
                        claimed=1, unit="", trend=True, variants=[f"{name} at {context}"],
                        measure=_refused,
                        reason="by the scores of the prefill; the paper states no cause",
                    )
                )  # fmt: skip
                continue
            made.append(
                Claim(
                    paper="MILLION", figure="Table IV", what=what, claimed=cell, unit="ms",
                    variants=[f"{name} at {context}"], measure=_token,
                )
            )  # fmt: skip
    return made


CLAIMS: list[Claim] = [
    *_table_4(),
    Claim(
        paper="MILLION",
        figure="7",
        what="end to end at 32K, 4 bits against FP16",
        claimed=2.09,
        variants=["a40-million / a40"],
        measure=_speedup,
        reason="132.97 by 63.41 ms of Table IV is 2.10",
    ),
    Claim(
        paper="MILLION",
        figure="7",
        what="attention at 32K",
        claimed=2.01,
        reason="attention speeds up less than the whole in the paper; its breakdown is a figure",
    ),
    Claim(
        paper="VQ-LLM",
        figure="abstract",
        what="latency saved by fused kernels, at least",
        claimed=64.36,
        unit="%",
        reason="64.36 to 99.1 % of kernels of a GPU; docs/vqllm-claims.md has our engines' figures",
    ),
]
