"""The rows that there are, a table per question, with the figures of MILLION's paper. No torch."""

import dataclasses

PLAIN = "fp32"  # what every row is compared with
# 16 training vectors per entry: with 39 or more, 4,096 entries take half an hour of a core.
MILLION_3B = "million-3b:few=true,vectors=16"
_KVQUANT = {4: "kvquant-like", 3: "kvquant-like:bits=3"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A method as spelt, its name in the table, the paper's figure for it."""

    method: str
    label: str
    paper: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """paper: head of the column of the paper's figures.

    whole: all texts, else the first; seeds: those that have as many windows as the first, else the
    first alone; every_seed: all seeds, on the windows that each of them has.
    """

    name: str
    entries: tuple[Entry, ...]
    paper: str = ""
    whole: bool = False
    seeds: bool = False
    every_seed: bool = False


@dataclasses.dataclass(frozen=True)
class Pair:
    """A row of Table III: a method without and with 1 % of exact outliers.

    paper: sensitivity, ``1 - perplexity with / perplexity without``, in percent.
    """

    label: str
    without: str
    with_outliers: str
    paper: str


def _without(bits: int) -> str:
    return _KVQUANT[bits] + (",share=0.0" if ":" in _KVQUANT[bits] else ":share=0.0")


OUTLIERS = (
    Pair("KVQuant, 3 bits", _without(3), _KVQUANT[3], "53.4 %"),
    Pair("MILLION, 3 bits", MILLION_3B, f"{MILLION_3B},share=0.01", "-0.38 %"),
    Pair("KVQuant, 4 bits", _without(4), _KVQUANT[4], "26.5 %"),
    Pair("MILLION, 4 bits", "million-4b", "million-4b:share=0.01", "0.58 %"),
)

_METHODS = (
    Entry(PLAIN, "FP32", "5.12"),
    Entry("rtn-kv4", "per token, Min to Max"),
    Entry("rtn-kv3", "per token, Min to Max"),
    Entry("kivi-like", "after KIVI"),
    Entry("kivi-like:bits=3", "after KIVI"),
    Entry("oaken", "Oaken"),
    Entry(_without(4), "after KVQuant, no outliers", "6.99"),
    Entry(_KVQUANT[4], "after KVQuant, 1 % outliers", "5.14"),
    Entry(_without(3), "after KVQuant, no outliers", "11.21"),
    Entry(_KVQUANT[3], "after KVQuant, 1 % outliers", "5.22"),
    Entry("million-4b", "MILLION", "5.21"),
    Entry(MILLION_3B, "MILLION", "5.20"),
)


def _shape(subspaces: int, bits: int) -> Entry:
    """Names a shape at head size 64; the paper's two settings are spelt as its rates."""
    label = f"({subspaces}, {bits})"
    if (subspaces, bits) == (32, 8):
        return Entry("million-4b", label)
    if (subspaces, bits) == (16, 12):
        return Entry(MILLION_3B, label)
    fewer = ",few=true,vectors=16" if bits > 8 else ""
    return Entry(f"million:subspaces={subspaces},bits={bits}{fewer}", label)


_SHAPES = tuple(
    _shape(*each)
    for each in ((64, 4), (32, 8), (64, 3), (32, 6), (16, 12), (16, 10), (64, 2), (32, 4), (16, 8))
)
# Windows, sinks, and one of K and V alone.
_KEPT = tuple(
    Entry(f"million-4b:{fields}" if fields else "million-4b", label)
    for fields, label in {
        "": "every token coded",
        "window=1": "own token exact (equation 6)",
        "window=32": "window 32, flush",
        "window=32,policy=sliding": "window 32, sliding",
        "window=128": "window 128, flush",
        "window=128,policy=sliding": "window 128, sliding",
        "sink=4": "4 sinks",
        "window=128,sink=4": "window 128, flush, 4 sinks",
        "values=false": "K alone",
        "keys=false": "V alone",
        "pre_rope=true": "K before RoPE",
    }.items()
)
# Codebooks of 64 entries: the calibration has 32 vectors of a head for each.
_SIXTY_FOUR = "million:subspaces=32,bits=6,few=true,vectors=32"
_SCOPES = (
    Entry(_SIXTY_FOUR, "(32, 6), model"),
    Entry(f"{_SIXTY_FOUR},scope=layer", "(32, 6), layer"),
    Entry(f"{_SIXTY_FOUR},scope=head", "(32, 6), head"),
    Entry("million-4b", "(32, 8), model"),
    Entry("million-4b:few=true,scope=layer", "(32, 8), layer"),
)

TABLES = (
    Table("million_methods", _METHODS, "LLaMA-2-7B, WikiText-2", whole=True, seeds=True),
    Table(
        "million_outliers",
        tuple(
            Entry(method, pair.label)
            for pair in OUTLIERS
            for method in (pair.without, pair.with_outliers)
        ),
        whole=True,
        seeds=True,
    ),
    Table(
        "million_seeds",
        (Entry(PLAIN, "FP32"), Entry("million-4b", "MILLION")),
        whole=True,
        seeds=True,
        every_seed=True,
    ),
    Table("million_shapes", _SHAPES),
    Table("million_kept", _KEPT),
    Table("million_scopes", _SCOPES),
)
