"""The claims of MILLION's paper, judged from the rows, or the reason why they cannot be judged."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from golden.llm.eval.accuracy.report import Report
from golden.llm.eval.accuracy.tables import Verdict
from golden.llm.reports.codebooks import Paired
from golden.llm.reports.million.stats import Measured, measured, paired, percent, sensitivity
from golden.llm.reports.million.tables import MILLION_3B, OUTLIERS

# Of methods on one text, on the windows that all of them have.
Lookup = Callable[[Sequence[str]], list[Measured | None]]

_SURE = 3  # standard errors from which on a difference is not called chance


@dataclasses.dataclass(frozen=True)
class Claim:
    """whole: judged on each text with all seeds, else on the first text with the first seed."""

    text: str
    source: str
    judge: Callable[[Lookup], Verdict]
    whole: bool = True


def _judged(
    methods: dict[str, str], holds: Callable[[dict[str, Measured]], tuple[bool, str]]
) -> Callable[[Lookup], Verdict]:
    """``holds`` of the rows by label; no verdict where a row is missing."""

    def judge(find: Lookup) -> Verdict:
        found = dict(zip(methods, find(list(methods.values())), strict=True))
        missing = [methods[label] for label, each in found.items() if each is None]
        if missing:
            return Verdict(None, "no row of " + ", ".join(f"`{each}`" for each in missing))
        return Verdict(*holds({label: each for label, each in found.items() if each}))

    return judge


def _figures(found: dict[str, Measured]) -> str:
    return ", ".join(f"{label} {each.mean:.3f}" for label, each in found.items())


def _chance(apart: Paired, what: str = "they") -> str:
    """Standard errors of a difference, where they are few."""
    if math.isnan(apart.error) or abs(apart.mean) >= _SURE * apart.error:
        return ""
    return f"; {what} are {abs(apart.mean) / apart.error:.1f} standard errors apart"


def _below(found: dict[str, Measured]) -> tuple[bool, str]:
    """The first is below each other one; how many standard errors, where they are few."""
    (label, own), *others = found.items()
    figures = [_figures(found)]
    for other, each in others:
        figures.append(_chance(paired(own, each), f"{label} and {other}"))
    return all(own.mean < each.mean for _, each in others), "".join(figures)


def _slightly_below(found: dict[str, Measured]) -> tuple[bool, str]:
    """The other is above the first by at most 2 %."""
    is_below, figures = _below(found)
    apart = paired(*found.values())
    return is_below and math.expm1(apart.mean) <= 0.02, f"{percent(apart)}; {figures}"


def _within(share: float) -> Callable[[dict[str, Measured]], tuple[bool, str]]:
    def holds(found: dict[str, Measured]) -> tuple[bool, str]:
        ((label, own),) = found.items()
        return math.expm1(own.against.mean) <= share, f"{label} {percent(own.against)}"

    return holds


def _sensitivities(found: dict[str, Measured]) -> tuple[bool, str]:
    """KVQuant gains more by exact outliers than MILLION."""
    kvquant, kvquant_kept, million, million_kept = found.values()
    gains = [
        [a - b for a, b in zip(without.losses, kept.losses, strict=True)]
        for without, kept in ((kvquant, kvquant_kept), (million, million_kept))
    ]
    apart = Paired.of(gains[1], gains[0])
    figures = (
        f"KVQuant {sensitivity(kvquant, kvquant_kept)}, "
        f"MILLION {sensitivity(million, million_kept)}{_chance(apart)}"
    )
    return apart.mean > 0, figures


def _immune(found: dict[str, Measured]) -> tuple[bool, str]:
    own, kept = found.values()
    return abs(math.expm1(paired(own, kept).mean)) <= 0.01, f"MILLION {sensitivity(own, kept)}"


def _claims() -> tuple[Claim, ...]:
    kvquant_3, million_3, kvquant_4, million_4 = OUTLIERS
    found = []
    for bits, kvquant, million in ((4, kvquant_4, million_4), (3, kvquant_3, million_3)):
        own = {"MILLION": million.without}
        kept = {"KVQuant, 1 %": kvquant.with_outliers}
        found += [
            Claim(
                f"MILLION is below KVQuant without outliers at {bits} bits",
                "Table II",
                _judged({**own, "KVQuant": kvquant.without}, _below),
            ),
            Claim(
                f"MILLION is slightly above KVQuant with 1 % of outliers at {bits} bits: "
                "by 0 to 2 %",
                "text of section IV",
                _judged({**kept, **own}, _slightly_below),
            ),
            Claim(
                f"MILLION is at most 1.8 % above FP16 at {bits} bits",
                "Table II, WikiText-2",
                _judged(own, _within(0.018)),
            ),
            Claim(
                f"exact outliers help KVQuant more than MILLION at {bits} bits",
                "Table III",
                _judged(
                    {
                        "a": kvquant.without, "b": kvquant.with_outliers,
                        "c": million.without, "d": million.with_outliers,
                    },
                    _sensitivities,
                ),
            ),
            Claim(
                f"exact outliers change MILLION by at most 1 % at {bits} bits",
                "Table III",
                _judged({"a": million.without, "b": million.with_outliers}, _immune),
            ),
        ]  # fmt: skip
    found += [
        Claim(
            "KVQuant with 1 % of outliers is at most 2 % above FP16 at 3 bits",
            "Table II, LLaMA-2-7B",
            _judged({"KVQuant, 1 %": kvquant_3.with_outliers}, _within(0.02)),
        ),
        Claim(
            "MILLION at 3 bits is below MILLION at 4 bits",
            "Table II, LLaMA-2-7B, WikiText-2",
            _judged({"3 bits": MILLION_3B, "4 bits": "million-4b"}, _below),
        ),
        Claim(
            "KIVI is far worse: KVQuant without outliers is below it at 4 bits",
            "footnote 1",
            _judged({"KVQuant": kvquant_4.without, "KIVI": "kivi-like"}, _below),
        ),
    ]
    for best, others in (
        ("(32, 8)", {"(64, 4)": "million:subspaces=64,bits=4"}),
        (
            "(16, 12)",
            {
                "(64, 3)": "million:subspaces=64,bits=3",
                "(32, 6)": "million:subspaces=32,bits=6",
            },
        ),
    ):
        method = {"(32, 8)": "million-4b", "(16, 12)": MILLION_3B}[best]
        text = f"codes of {best[-3:-1].strip()} bits are the best of their rate"
        found.append(
            Claim(text, "footnote 2", _judged({best: method, **others}, _below), whole=False)
        )
    return tuple(found)


CLAIMS = _claims()


def channels(content: dict[str, Any]) -> list[tuple[str, str, bool, str]]:
    """(what is said, source, whether it holds in each layer, figures) of Figures 2 and 3."""
    found = []
    for what, source, text in (
        (
            "magnitude",
            "Figure 2",
            "magnitudes of K differ more by channel than those of V, in each layer",
        ),
        (
            "deviation",
            "Figure 3",
            "deviations of K differ more by channel than those of V, in each layer",
        ),
    ):
        pairs = [(each["K"][what], each["V"][what]) for each in content["layers"]]
        higher = sum(k > v for k, v in pairs)
        spans = [f"{name} {min(own):.1f}..{max(own):.1f}"
                 for name, own in zip("KV", zip(*pairs, strict=True), strict=True)]  # fmt: skip
        figures = (
            f"largest over median channel: {', '.join(spans)}; "
            f"K above V in {higher} of {len(pairs)} layers"
        )
        found.append((text, source, higher == len(pairs), figures))
    return found


# What is said, source, and why no row here can judge it.
UNTESTABLE = (
    (
        "figures of GPT2-xl, MPT-7B and LLaMA-2-7B",
        "Table II",
        "models of 1.5 to 7 billion parameters; GPT-2 and MPT are no LLaMA architectures",
    ),
    ("figures of PTB", "Table II", "the text is not free"),
    (
        "time per token against KIVI and KVQuant on an A40",
        "Table IV",
        "they are times of CUDA kernels with 7 billion parameters",
    ),
    (
        "scores 0.95 and 0.93 lower at 4 bits, 0.45 higher for Yarn-LLaMA-2-7B",
        "Figure 6",
        "LongBench generates text with models of 7 billion parameters and long contexts",
    ),
    (
        "2.01 times faster attention at 32K tokens",
        "Figure 7",
        "a time of CUDA kernels; the blocks here are another machine",
    ),
    (
        "2.09 times faster end to end at 32K tokens",
        "Figure 7",
        "a time of a whole GPU system; Table IV gives 132.97 / 63.41 = 2.10",
    ),
)


def lookup(report: Report, text: str, seeds: bool) -> Lookup:
    return lambda methods: measured(report, text, methods, seeds)
