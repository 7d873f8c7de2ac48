"""MILLION's claims: Table IV and Figure 7, on an A40; the cache of its introduction."""

import itertools
from collections.abc import Callable

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


def _ahead(variant: str) -> float:
    """1 where the first chip makes a token in less time than the second one."""
    chips, context = variant.split(" at ")
    ours, theirs = chips.split(" / ")
    first, second = (_token(f"{each} at {context}") for each in (ours, theirs))
    return float(first / second < 1)


def _gains_more(variant: str) -> float:
    """1 where MILLION gains more over FP16 after the longer context."""
    chips, contexts = variant.split(" at ")
    ours, theirs = chips.split(" / ")
    gains = [
        _token(f"{theirs} at {context}") / _token(f"{ours} at {context}")
        for context in contexts.split(" < ")
    ]
    return float(gains[0] < gains[1])


def _nearer(variant: str) -> float:
    """1 where KVQuant's tokens by MILLION's are nearer 1 after the longer context."""
    return 1.0 - _gains_more(variant)


def _orders() -> list[Claim]:
    """Orders of Table IV's rows by length. Their chips are fitted on the table."""

    def made(
        what: str, variants: list[str], measure: Callable[[str], float], reason: str = ""
    ) -> Claim:
        return Claim(
            paper="MILLION", figure="Table IV", what=what, claimed=1, unit="", trend=True,
            variants=variants, measure=measure, reason=reason,
        )  # fmt: skip

    steps = [f"{a} < {b}" for a, b in itertools.pairwise(_CONTEXTS)]
    return [
        made(
            "MILLION is faster than KVQuant at each length",
            [f"a40-million / a40-kvquant at {each}" for each in _CONTEXTS], _ahead,
        ),
        made(
            "its lead over KVQuant falls with the length",
            [f"a40-million / a40-kvquant at {each}" for each in steps], _nearer,
            "75.73 by 30.36 ms at 1K, 90.16 by 63.41 ms at 32K",
        ),
        made(
            "MILLION is faster than FP16 from 1K on",
            [f"a40-million / a40 at {each}" for each in _CONTEXTS], _ahead,
        ),
        made(
            "MILLION's gain over FP16 rises with the length",
            [f"a40-million / a40 at {each}" for each in steps], _gains_more,
        ),
        made("KIVI is faster than FP16 at 8K", ["a40-kivi / a40 at 8192"], _ahead),
        made("KVQuant is slower than FP16 at 8K", ["a40 / a40-kvquant at 8192"], _ahead),
    ]  # fmt: skip


def _palm_cache(variant: str) -> Quantity:
    """K and V of 48 heads of 256 elements in 118 layers, an element in so many bytes."""
    size = float(variant.split()[0])
    return Quantity(2 * 118 * 48 * 256 * 512 * 2048 * size, "B")


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
    *_orders(),
    Claim(
        paper="MILLION",
        figure="text",
        what="a cache of PaLM 540B, batch 512 after 2048",
        claimed=3,
        unit="TB",
        variants=["1 B", "2 B"],
        measure=_palm_cache,
        reason="118 layers, 48 heads of 256 without shared heads; PaLM's own share one KV head",
    ),
]
