"""KLLM's Tables II and III: what the text draws from them. Figure 1 (b): products of an A100.

The text states differences and means. Each is computed again from the cells of the tables, which
are below as the paper prints them. The cells themselves are of models of 7 billion parameters and
more: docs/accuracy.md has the orderings on a model that is at hand.
"""

from collections.abc import Sequence

from golden.kllm.trees import OrizuruTrees
from sim.claims.claim import Claim
from sim.claims.product import gpu_product_seconds, stored_product_seconds

_PAPER = "KLLM"
_OWN = "the paper's own arithmetic"
MODELS = (
    "LLaMA-7B", "LLaMA-13B", "LLaMA-30B", "LLaMA-2-7B", "LLaMA-2-13B", "LLaMA-2-70B", "Mistral-7B",
)  # fmt: skip
# Perplexities of Table II, by precision and method, one for each of MODELS.
TABLE_2: dict[str, tuple[float, ...]] = {
    "FP16": (5.68, 5.09, 4.10, 5.47, 4.88, 3.32, 5.25),
    "W4A4 Atom": (6.25, 5.52, 4.61, 6.12, 5.31, 3.73, 5.76),
    "W4A4 KLLM-S": (6.08, 5.38, 4.40, 6.00, 5.21, 3.60, 5.84),
    "W4A4 KLLM": (6.04, 5.37, 4.38, 5.90, 5.19, 3.55, 5.75),
    "W4A3 Atom": (9.62, 7.36, 6.18, 11.40, 8.00, 5.05, 10.83),
    "W4A3 KLLM-S": (7.60, 6.28, 5.31, 7.91, 6.99, 4.13, 7.42),
    "W4A3 KLLM": (7.17, 6.21, 5.10, 7.49, 6.43, 4.05, 7.27),
}
# Accuracies of Table III in per cent: PIQA, ARC-e, ARC-c, HellaSwag, WinoGrande; the stated mean.
TABLE_3: dict[str, tuple[tuple[float, ...], float]] = {
    "FP16": ((78.67, 74.58, 46.16, 75.95, 68.98), 68.87),
    "W4A4 QuaRot": ((76.77, 69.87, 40.87, 72.16, 63.77), 64.69),
    "W4A4 Atom": ((75.14, 52.99, 38.40, 69.37, 62.75), 59.73),
    "W4A4 KLLM-S": ((77.31, 71.46, 42.92, 72.57, 64.80), 65.81),
    "W4A4 KLLM": ((77.97, 73.06, 43.60, 74.32, 65.51), 66.89),
    "W4A3 QuaRot": ((72.17, 60.26, 35.37, 63.61, 60.48), 58.38),
    "W4A3 Atom": ((71.01, 48.63, 33.49, 62.54, 59.50), 55.03),
    "W4A3 KLLM-S": ((75.14, 63.93, 37.37, 67.58, 63.93), 61.59),
    "W4A3 KLLM": ((75.84, 65.99, 39.59, 68.28, 64.17), 62.77),
}
_NO_TASKS = (
    "needs the five tasks and LLaMA-2-7B, which are not available offline; "
    "golden.llm.eval --tasks runs them where they are"
)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of one or more values."""
    return sum(values) / len(values)


def _gap_closed(variant: str) -> float:
    """Per cent of Atom's distance to FP16 that KLLM's lacks, on one model."""
    precision, model = variant.split(" on ")
    n = MODELS.index(model)
    atom, ours = (TABLE_2[f"{precision} {name}"][n] for name in ("Atom", "KLLM"))
    return 100 * (1 - (ours - TABLE_2["FP16"][n]) / (atom - TABLE_2["FP16"][n]))


def _online_gains(precision: str) -> float:
    """Perplexity that KLLM has less than KLLM-S, in the mean over models."""
    pairs = zip(TABLE_2[f"{precision} KLLM-S"], TABLE_2[f"{precision} KLLM"], strict=True)
    return mean([offline - online for offline, online in pairs])


def _accuracy_lead(variant: str) -> float:
    """Points of mean accuracy between two rows of Table III, from their cells."""
    more, less = variant.split(" - ")
    return mean(TABLE_3[more][0]) - mean(TABLE_3[less][0])


def orizuru_comparisons(variant: str) -> float:
    """The comparisons of golden's trees over N different words, k pops of each side.

    The next words of both roots are found too, as the paper's tree does after its last pop.
    """
    length, pops = map(int, variant.split(", "))
    # An order that is neither sorted nor reversed: multiples of an odd number.
    trees = OrizuruTrees([n * 2_531 % length for n in range(length)])
    for _ in range(pops):
        trees.pop()
        trees.pop(smallest=True)
    trees.root()
    trees.root(smallest=True)
    return float(trees.comparisons)


def _slower(variant: str) -> float:
    """1 where the kernel with look-ups takes longer than that of another method."""
    looked, theirs = variant.split(" / ")
    return float(gpu_product_seconds(looked) > stored_product_seconds(theirs))


def _text(figure: str, what: str, claimed: float, **fields: object) -> Claim:
    """A number of the text that follows from a table's cells."""
    made = {"near": 1.01, "reason": _OWN, "unit": "", **fields}
    return Claim(paper=_PAPER, figure=figure, what=what, claimed=claimed, **made)  # type: ignore[arg-type]


def _leads() -> list[Claim]:
    leads: tuple[tuple[str, float, str], ...] = (
        ("W4A4: accuracy below FP16", 1.98, "FP16 - W4A4 KLLM"),
        ("W4A3: accuracy below FP16", 6.1, "FP16 - W4A3 KLLM"),
        ("W4A4: accuracy above Atom", 7.16, "W4A4 KLLM - W4A4 Atom"),
        ("W4A4: accuracy above QuaRot", 2.2, "W4A4 KLLM - W4A4 QuaRot"),
        ("W4A3: accuracy above Atom", 7.74, "W4A3 KLLM - W4A3 Atom"),
        ("W4A3: accuracy above QuaRot", 4.39, "W4A3 KLLM - W4A3 QuaRot"),
    )
    return [
        _text("Table III", what, claimed, variants=[variant], measure=_accuracy_lead, unit="%")
        for what, claimed, variant in leads
    ]


def _means() -> list[Claim]:
    def measure(row: str) -> float:
        return mean(TABLE_3[row][0])

    return [
        _text(
            "Table III", f"mean accuracy of {row}", stated, variants=[row], measure=measure,
            unit="%", near=1.001,
        )
        for row, (_, stated) in TABLE_3.items()
    ]  # fmt: skip


def _gaps() -> list[Claim]:
    gaps = (("LLaMA-2-7B", "W4A4", 34), ("LLaMA-7B", "W4A4", 37), ("LLaMA-7B", "W4A3", 62))
    return [
        _text(
            "Table II", f"{model}, {precision}: less distance to FP16 than Atom", claimed,
            variants=[f"{precision} on {model}"], measure=_gap_closed, unit="%",
        )
        for model, precision, claimed in gaps
    ]  # fmt: skip


CLAIMS: list[Claim] = [
    Claim(
        paper=_PAPER, figure="1", unit="", trend=True, claimed=1,
        what="b: on an A100 a product with look-ups takes longer than QuaRot's and Atom's",
        variants=[
            f"{looked} / {theirs}"
            for looked in ("a100-80gb-eager", "a100-80gb")
            for theirs in ("a100-quarot", "a100-atom")
        ],
        measure=_slower,
        reason="4096 x 4096, one token; written after a look at these products",
    ),
    *_gaps(),
    _text(
        "Table II", "LLaMA-2-7B, W4A4: perplexity above FP16", 0.43, variants=["5.90 - 5.47"],
        measure=lambda _: TABLE_2["W4A4 KLLM"][3] - TABLE_2["FP16"][3],
    ),
    _text(
        "Table II", "LLaMA-2-7B, W4A4: SmoothQuant is so many times higher than FP16", 127,
        unit="x", variants=["702.3 / 5.47 - 1"],
        measure=lambda _: 702.3 / TABLE_2["FP16"][3] - 1,
    ),
    *(
        _text(
            "Table II", f"{precision}: KLLM below KLLM-S in the mean", claimed,
            variants=[precision], measure=_online_gains, near=1.1,
        )
        for precision, claimed in (("W4A4", 0.05), ("W4A3", 0.27))
    ),
    *_leads(),
    *_means(),
    Claim(
        paper=_PAPER, figure="Table III", what="accuracy of KLLM on five tasks", claimed=66.89,
        unit="%", reason=_NO_TASKS,
    ),
    _text(
        "Table I", "units of 16 inputs for a token of 4,096", 273, variants=["256 + 16 + 1"],
        measure=lambda _: float(sum(4096 // 16**level for level in (1, 2, 3))),
    ),
    _text(
        "Table I", "Concat units of the chip", 65536, variants=["16 lanes of 4096"],
        measure=lambda _: 16.0 * 4096,
    ),
    _text(
        "text", "comparisons of Orizuru, 4,096 words, 20 of each side: 1.5 N + 2 k log2 N",
        1.5 * 4096 + 2 * 20 * 12, variants=["4096, 20"], measure=orizuru_comparisons, near=1.02,
        reason="golden's trees count theirs; a repair takes at most log2 N - 1",
    ),
]  # fmt: skip
