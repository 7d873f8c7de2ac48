"""The rows that there are, next to the papers' figures, and the order that the papers claim."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from golden.llm.eval.accuracy.report import Spread

# Of KLLM's flow only what the baselines have, too: quantized weights and inputs of linear layers.
_LINEAR = "norm=unfolded,glu=exact,integer_bits=16,cache_bits=16"
# Both papers round weights by GPTQ; KLLM's does not say what it compares with.
_GPTQ = ":rounding=gptq"
_SHARES = {"0.005": "0.5 %", "0.01": "1 %", "0.02": "2 %", "0.05": "5 %", "0.1": "10 %"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method as spelt, its name in the table, its precision, the paper's figure for it."""

    method: str
    label: str
    precision: str = ""
    paper: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """title names the paper's table; paper: head of its column.

    whole: all texts, else the text of the sweeps; seeds: all of them, else the first.
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    paper: str = ""
    whole: bool = False
    seeds: bool = False


def _precisions() -> tuple[Entry, ...]:
    """KLLM, Table II, with its figures of LLaMA-2-7B."""
    found = [
        Entry("fp32", "FP32", "W32A32"),
        Entry("fp16", "FP16", "W16A16", "5.47"),
        Entry("gptq-like-w4a16", "after GPTQ", "W4A16", "5.84"),
        Entry("squeezellm-like-w4a16", "after SqueezeLLM", "W4A16", "5.62"),
    ]
    paper = {
        "4": ("2e3", "7e2", "", "", "6.00", "5.90"),
        "3": ("6e5", "8e3", "2e2", "11.40", "7.91", "7.49"),
    }
    for bits, figures in paper.items():
        wide = f"w4a{bits}"
        found += [
            Entry(method, label, wide.upper(), figure)
            for (method, label), figure in zip(
                (
                    (f"rtn-{wide}", "RTN"),
                    (f"smoothquant-{wide}", "SmoothQuant"),
                    (f"quarot-{wide}", "QuaRot, RTN"),
                    (f"atom-like-{wide}", "after Atom, RTN"),
                    (f"kllm-s-{wide}", "KLLM-S"),
                    (f"kllm-plain-{wide}", "KLLM"),
                ),
                figures,
                strict=True,
            )
        ]
    found += [
        Entry(f"quarot-w4a4{_GPTQ}", "QuaRot, GPTQ", "W4A4", "6.19"),
        Entry(f"atom-like-w4a4{_GPTQ}", "after Atom, GPTQ", "W4A4", "6.12"),
        Entry(f"kllm-s-w4a4:{_LINEAR}", "KLLM-S, linear layers only", "W4A4"),
        Entry(f"kllm-plain-w4a4:{_LINEAR}", "KLLM, linear layers only", "W4A4"),
    ]
    return tuple(found)


def _at(method: str, share: str) -> str:
    """Spells a method with a share of outliers; the default is spelt as the default."""
    return method if share == "0.01" else f"{method}:share={share}"


def _outliers() -> tuple[Entry, ...]:
    """KLLM, Table IV."""
    paper = {
        "kllm-s-w4a4": ("6.62", "6.00", "5.95", "5.80", "5.69"),
        "kllm-plain-w4a4": ("6.11", "5.90", "5.87", "5.66", "5.58"),
        "kllm-s-w4a3": ("11.14", "7.91", "7.11", "6.40", "6.12"),
        "kllm-plain-w4a3": ("9.66", "7.49", "6.62", "6.22", "5.98"),
    }
    return tuple(
        Entry(_at(method, share), f"{_kllm(method)}, {_SHARES[share]}", _precision(method), figure)
        for method, figures in paper.items()
        for share, figure in zip(_SHARES, figures, strict=True)
    )


def _kllm(method: str) -> str:
    return "KLLM-S" if method.startswith("kllm-s") else "KLLM"


def _precision(method: str) -> str:
    return method.rsplit("-", 1)[1].upper()


_BREAKDOWN = (
    Entry("rtn-w4a3", "RTN", "W4A3", "> 600,000"),
    Entry("kllm-s-w4a3:weight_fisher=false", "K-Means", "W4A3", "8.03"),
    Entry("kllm-s-w4a3", "and Fisher weights", "W4A3", "7.91"),
    Entry("kllm-plain-w4a3", "and Orizuru", "W4A3", "7.49"),
)

_SWITCHES = (
    Entry("kllm-plain-w4a4", "as it is", "W4A4"),
    Entry("kllm-plain-w4a4:norm=exact", "norm with the token's own statistics", "W4A4"),
    Entry("kllm-plain-w4a4:norm=unfolded", "quantized behind the norm", "W4A4"),
    Entry("kllm-plain-w4a4:glu=exact", "gate and up not quantized", "W4A4"),
    Entry("kllm-plain-w4a4:scores=index", "q quantized", "W4A4"),
    Entry("kllm-plain-w4a4:integer_bits=4", "probabilities of 4 bits", "W4A4"),
    Entry("kllm-plain-w4a4:integer_bits=16", "probabilities not quantized", "W4A4"),
    Entry("kllm-plain-w4a4:cache_bits=16", "K and V not quantized", "W4A4"),
    Entry("kllm-plain-w4a4:cache_share=0.03", "outliers in K and V, one a side of a head", "W4A4"),
    Entry("kllm-plain-w4a4:pre_rope=true", "K quantized before RoPE", "W4A4"),
    Entry("kllm-plain-w4a4+oaken", "K and V by Oaken", "W4A4"),
    Entry("kllm-plain-w4a4:weight_fisher=false", "no Fisher weights", "W4A4"),
    Entry("kllm-plain-w4a4:fisher=true", "Fisher weights of the activations, too", "W4A4"),
    Entry("kllm-plain-w4a4:fuse=false", "a codebook for each linear layer", "W4A4"),
    Entry("kllm-plain-w4a16", "weights only", "W4A16"),
    Entry("kllm-plain-w16a4", "activations only", "W16A4"),
)

# What each step of the recipe gives, and what it is compared with at equal bits.
_RECIPE = (
    Entry("kllm-plain-w4a4", "KLLM, each tensor alone", "W4A4"),
    Entry("kllm-w4a4", "KLLM", "W4A4"),
    Entry("kllm-w4a4:integer_bits=16+oaken", "KLLM, K and V of Oaken", "W4A4"),
    Entry("atom-like-w4a4", "after Atom, RTN", "W4A4"),
    Entry("atom-like-w4a4+rtn-kv4", "and K and V per token", "W4A4"),
    Entry(f"atom-like-w4a4{_GPTQ}", "after Atom, GPTQ", "W4A4"),
    Entry(f"atom-like-w4a4{_GPTQ}+rtn-kv4", "and K and V per token", "W4A4"),
    Entry("kllm-plain-w4a3", "KLLM, each tensor alone", "W4A3"),
    Entry("kllm-w4a3", "KLLM", "W4A3"),
    Entry("atom-like-w4a3", "after Atom, RTN", "W4A3"),
)

_RECIPE_SEEDS = tuple(
    each for each in _RECIPE if each.label in ("KLLM", "KLLM, K and V of Oaken")
)

_CACHES = (
    Entry("fp32", "FP32"),
    Entry("fp16", "FP16", "", "5.47"),
    Entry("kvquant-like", "after KVQuant", "", "5.49"),
    Entry("kivi-like", "after KIVI", "", "5.50"),
    Entry("oaken", "Oaken", "", "5.53"),
    Entry("oaken:pre_rope=true", "Oaken, K before RoPE"),
    Entry("oaken:mode=artifact", "Oaken, one scale for both sides"),
    Entry("rtn-kv4", "per token, Min to Max"),
    Entry("rtn-kv5", "per token, Min to Max, 5 bits"),
)


def _oaken(ratios: str, bits: int = 5) -> str:
    fields = [f"ratios={ratios}"] if ratios != "4/90/6" else []
    fields += [f"outlier_bits={bits}"] if bits != 5 else []
    return "oaken" + (":" + ",".join(fields) if fields else "")


def _groups() -> tuple[Entry, ...]:
    """Oaken, Table 3."""
    paper = {
        ("4/90/6", 5): "5.526", ("90/10", 5): "5.804", ("10/90", 5): "5.546",
        ("4/90/3/3", 5): "5.523", ("2/2/90/6", 5): "5.516", ("2/2/90/3/3", 5): "5.516",
        ("4/90/3/3", 4): "5.572", ("2/2/90/6", 4): "5.531", ("2/2/90/3/3", 4): "5.532",
    }  # fmt: skip
    return tuple(
        Entry(_oaken(ratios, bits), f"{ratios}, outliers of {bits} bits", "", figure)
        for (ratios, bits), figure in paper.items()
    )


def _stochastic() -> tuple[Entry, ...]:
    """The methods of the whole texts but W4A3 and W4A16, without the papers' figures."""
    every = {each.method: each for each in (*_precisions(), *_CACHES)}
    return tuple(
        dataclasses.replace(each, paper="")
        for each in every.values()
        if each.precision not in ("W4A3", "W4A16")
    )


def _other_caches() -> tuple[Entry, ...]:
    return tuple(each for each in _CACHES if each.method not in ("fp32", "fp16", "oaken"))


# Oaken, Figure 12a: shares of outliers, and how they are divided.
_RATIOS = (
    "1/98/1", "1/95/4", "2/95/3", "4/95/1", "2/90/8", "4/90/6", "8/90/2", "4/85/11", "8/85/7",
    "4/80/16", "8/80/12", "16/80/4",
)  # fmt: skip

TABLES = (
    Table("precisions", "Methods and precisions (KLLM, Table II)", _precisions(),
          "LLaMA-2-7B, WikiText-2", whole=True),
    Table("caches", "Methods for K and V (Oaken, Table 2)", _CACHES,
          "Llama2-7B, WikiText-2", whole=True),
    Table("seeds", "Methods with several seeds of the calibration", _stochastic(), seeds=True),
    Table("recipe", "KLLM's recipe at equal bits", _RECIPE, whole=True),
    Table("recipe_seeds", "KLLM's recipe with several seeds", _RECIPE_SEEDS, whole=True,
          seeds=True),
    Table("groups", "Groups of Oaken (Oaken, Table 3)", _groups(), "Llama2-7B, WikiText-2"),
    Table("breakdown", "From RTN to KLLM (KLLM, Figure 11)", _BREAKDOWN, "LLaMA-2-7B, WikiText-2"),
    Table("outliers", "Shares of outliers (KLLM, Table IV)", _outliers(),
          "LLaMA-2-7B, WikiText-2"),
    Table("switches", "KLLM's flow, one part at a time", _SWITCHES),
    Table("ratios", "Ratios of Oaken's groups (Oaken, Figure 12a)",
          (*(Entry(_oaken(each), each) for each in _RATIOS), *_other_caches())),
)  # fmt: skip


# ---- what the papers say

Lookup = Callable[[str], "Spread | None"]  # perplexity of a method on one text


@dataclasses.dataclass(frozen=True)
class Verdict:
    """holds: None where a row is missing. figures: what it is read from."""

    holds: bool | None
    figures: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of a paper, or a requirement, on the order of methods.

    whole: judged on each text, and with all seeds where the methods have them; else on the text of
    the sweeps with the first seed.
    """

    text: str
    source: str
    judge: Callable[[Lookup], Verdict]
    methods: tuple[str, ...]
    whole: bool = True


def number(value: float) -> str:
    """Three decimals; five digits from 1,000 on."""
    return f"{value:.3f}" if value < 1000 else f"{value:.4g}"


def _missing(methods: Sequence[str], find: Lookup) -> Verdict | None:
    absent = [f"`{method}`" for method in methods if find(method) is None]
    return Verdict(None, "no row of " + ", ".join(absent)) if absent else None


def _found(method: str, find: Lookup) -> "Spread":
    spread = find(method)
    assert spread is not None
    return spread


def rising(labelled: dict[str, str]) -> Callable[[Lookup], Verdict]:
    """label -> method: each one's mean perplexity is below that of the next.

    The figures name the pairs that do not rise, and the pairs whose ranges of the seeds overlap.
    They also name each pair whose mean difference of the windows' losses is less than three
    standard errors.
    """

    def judge(find: Lookup) -> Verdict:
        missing = _missing(list(labelled.values()), find)
        if missing:
            return missing
        spreads = {label: _found(method, find) for label, method in labelled.items()}
        figures = ", ".join(f"{label} {number(each.mean)}" for label, each in spreads.items())
        wrong, close = [], []
        pairs = list(spreads.items())
        for (lower, a), (upper, b) in itertools.pairwise(pairs):
            if not a.mean < b.mean:
                wrong.append(f"{lower} is not below {upper}")
            elif a.high >= b.low:
                close.append(f"ranges of {lower} and {upper} overlap")
            errors = a.standard_errors_below(b)
            if errors is not None and abs(errors) < 3:
                close.append(f"{lower} and {upper} are {abs(errors):.1f} standard errors apart")
        return Verdict(not wrong, "; ".join([figures, *wrong, *close]))

    return judge


def _ordered(text: str, source: str, labelled: dict[str, str], whole: bool = True) -> Claim:
    return Claim(text, source, rising(labelled), tuple(labelled.values()), whole)


def _within(method: str, other: str, share: float) -> Callable[[Lookup], Verdict]:
    """|method - other| is at most a share of FP32's perplexity."""

    def judge(find: Lookup) -> Verdict:
        missing = _missing((method, other, "fp32"), find)
        if missing:
            return missing
        a, b, plain = (_found(each, find).mean for each in (method, other, "fp32"))
        figures = (
            f"{number(a)} and {number(b)}, FP32 {number(plain)}: {abs(a - b) / plain:.2%} apart"
        )
        return Verdict(abs(a - b) <= share * plain, figures)

    return judge


def _closes(method: str, baselines: dict[str, str], share: float) -> Callable[[Lookup], Verdict]:
    """(best - method) >= share * (best - FP32), best: lowest of the baselines."""

    def judge(find: Lookup) -> Verdict:
        missing = _missing((method, "fp32", *baselines.values()), find)
        if missing:
            return missing
        means = {label: _found(each, find).mean for label, each in baselines.items()}
        label = min(means, key=lambda each: means[each])
        best, own, plain = means[label], _found(method, find).mean, _found("fp32", find).mean
        if not best > plain:
            return Verdict(
                None, f"the best, {label} {number(best)}, is not above FP32 {number(plain)}"
            )
        closed = (best - own) / (best - plain)
        figures = f"FP32 {number(plain)}, best {label} {number(best)}, KLLM {number(own)}"
        return Verdict(closed >= share, f"{figures}: {closed:.0%} of the gap")

    return judge


def _claims() -> tuple[Claim, ...]:
    found = []
    second = "KLLM, Table II"
    linear = {f":{_LINEAR}": ", linear layers only"}
    for wide, parts in (("w4a4", {"": "", **linear}), ("w4a3", {"": ""})):
        for fields, what in parts.items():
            chain = {
                "KLLM": f"kllm-plain-{wide}{fields}", "after Atom": f"atom-like-{wide}",
                "QuaRot": f"quarot-{wide}", "SmoothQuant": f"smoothquant-{wide}",
                "RTN": f"rtn-{wide}",
            }  # fmt: skip
            text = f"{wide.upper()}{what}: KLLM < Atom < QuaRot < SmoothQuant < RTN"
            found.append(_ordered(text, second, chain))
        for fields, what in parts.items():
            pair = {"KLLM": f"kllm-plain-{wide}{fields}", "KLLM-S": f"kllm-s-{wide}{fields}"}
            found.append(_ordered(f"{wide.upper()}{what}: KLLM below KLLM-S", second, pair))
    for caches, what in (("+rtn-kv4", "4-bit"), ("", "32-bit")):
        for rounding, named in (("", ""), (_GPTQ, ", GPTQ")):
            rival = f"atom-like-w4a4{rounding}{caches}"
            found.append(
                _ordered(f"W4A4: KLLM with 4-bit K and V below Atom{named} with {what} K and V",
                         "our aim", {"KLLM": "kllm-w4a4", f"after Atom{named}": rival})
            )  # fmt: skip
    channels = {"RTN": "rtn-w4a4", "SmoothQuant": "smoothquant-w4a4", "QuaRot": "quarot-w4a4"}
    for fields, what in {"": "", **linear}.items():
        method = f"kllm-plain-w4a4{fields}"
        for baselines, of in (
            (channels, "RTN, SmoothQuant and QuaRot"),
            (
                {
                    **channels, "after Atom": "atom-like-w4a4",
                    "QuaRot, GPTQ": f"quarot-w4a4{_GPTQ}",
                    "after Atom, GPTQ": f"atom-like-w4a4{_GPTQ}",
                },
                "these, Atom, and both with GPTQ",
            ),
        ):
            text = f"W4A4{what}: KLLM closes at least half of the gap from FP32 to the best of {of}"
            judge = _closes(method, baselines, 0.5)
            found.append(Claim(text, "our aim", judge, (method, "fp32", *baselines.values())))
    for method in ("kllm-s-w4a4", "kllm-plain-w4a4", "kllm-s-w4a3", "kllm-plain-w4a3"):
        sweep = {label: _at(method, share) for share, label in reversed(_SHARES.items())}
        text = f"{_precision(method)}: {_kllm(method)} falls with the share of outliers"
        found.append(_ordered(text, "KLLM, Table IV", sweep, whole=False))
    steps = {entry.label: entry.method for entry in reversed(_BREAKDOWN)}
    found.append(
        _ordered("W4A3: K-Means, Fisher weights, Orizuru each lower it", "KLLM, Figure 11", steps,
                 whole=False)
    )  # fmt: skip
    found.append(
        Claim("Oaken close to KVQuant: at most 1 % of FP32 apart (in the paper at most 0.8 %)",
              "Oaken, Table 2", _within("oaken", "kvquant-like", 0.01),
              ("oaken", "kvquant-like", "fp32"))
    )  # fmt: skip
    found.append(
        _ordered("KVQuant < KIVI < Oaken", "Oaken, Table 2",
                 {"after KVQuant": "kvquant-like", "after KIVI": "kivi-like", "Oaken": "oaken"})
    )  # fmt: skip
    found.append(
        _ordered("three groups below two of either kind", "Oaken, Table 3",
                 {"4/90/6": _oaken("4/90/6"), "10/90": _oaken("10/90"), "90/10": _oaken("90/10")},
                 whole=False)
    )  # fmt: skip
    found.append(
        _ordered("five bits for outliers of five groups below four", "Oaken, Table 3",
                 {"5 bits": _oaken("2/2/90/3/3"), "4 bits": _oaken("2/2/90/3/3", 4)}, whole=False)
    )  # fmt: skip
    return tuple(found)


CLAIMS = _claims()
