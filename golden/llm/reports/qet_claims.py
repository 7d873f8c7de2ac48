"""The figures of QET's claims: ``python -m golden.llm.reports.qet_claims --page``.

Source: QET, sections 3.3, 3.4 and 4. A matrix of a figure that a budget does not allow is left out.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Collection, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from golden import command
from golden.config import ConfigError
from golden.llm.eval.accuracy.arguments import ROOT
from golden.llm.reports.common import add_page, give, prepare, status
from golden.markers import table
from golden.qet.config import QetShape, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from golden.qet.matrix import QetMatrix

PAGE = ROOT / "docs" / "qet-claims.md"
_SETS = {"synthetic 1": (1024, 128), "synthetic 2": (1024, 512), "synthetic 3": (1024, 1024)}
_WIDE = {"K, as FP32": "K", "V, as FP32": "V"}  # each element counted as 32 bits
_REAL = ("up_proj", "K", "V", *_WIDE)
DATA = (*_SETS, *(f"{name}, outliers" for name in _SETS), *_REAL)
TABLES = ("headline", "ratios", "meet", "ablation", "rtn", "levels", "table1")
_MEAN, _DEVIATION = 0.5, 0.16  # of the synthetic sets, section 4.1
_OUTLIERS, _OUTLIER = 1e-4, 100.0  # share, and the largest magnitude
_RATIOS = (2, 4, 8, 12, 16)
_MEET = (13, 14, 15, 16)  # where Vanilla is said to meet QET
_BESIDE = ("Vanilla", "QET", "OPQ", "LOPQ")  # next to product quantization
_EQUAL = (16, 256)  # entries of the comparison at equal k
_HEADLINE = 4  # the ratio of Figures 3 and 5
_LAYER = 15
# Vanilla and QET over PQ at ratio 4, and RTN over QET, in the paper.
_PAPER = {
    "synthetic 1": ("36.53", "6.94", "71.74"),
    "synthetic 2": ("36.51", "7.13", "334.59"),
    "synthetic 3": ("36.54", "7.21", "247.39"),
    "up_proj": ("36.64", "5.05", "12.56"),
    "K": ("50.24", "13.33", "10.57"),
    "V": ("45.83", "11.89", "7.69"),
}
_PAPER |= {wide: _PAPER[name] for wide, name in _WIDE.items()}
_TABLE1 = {4: ("1.6", "87.5"), 8: ("4.0", "78.1"), 12: ("9.2", "71.8")}

# data, ratio, method, seed -> what was measured
Key = tuple[str, int, str, int]


def synthetic(rows: int, columns: int, outliers: bool, seed: int) -> "Tensor":
    """Normal deviates within 0..1; one element of 10,000 is uniform in -100..100."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    edge = 0.5 * (1 + math.erf(-_MEAN / _DEVIATION / math.sqrt(2)))
    uniform = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    matrix = torch.special.ndtri(edge + (1 - 2 * edge) * uniform) * _DEVIATION + _MEAN
    if outliers:
        hit = torch.rand(rows, columns, generator=generator) < _OUTLIERS
        far = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
        matrix = torch.where(hit, (2 * far - 1) * _OUTLIER, matrix)
    return matrix.float()


def _real(options: argparse.Namespace) -> Iterator[tuple[str, "Tensor", int]]:
    """A weight as FP32, K and V as FP16, of SmolLM2-135M on the built-in texts or on a file."""
    from golden.llm import text
    from golden.llm.capture import capture_kv
    from golden.llm.checkpoint import load, read_text, tokens

    names = [name for name in options.data if name in _REAL]
    if not names:
        return
    checkpoint = load()
    if "up_proj" in names:
        weight = checkpoint.model.model.layers[options.layer].mlp.up_proj.weight
        yield "up_proj", weight.detach(), 32
    if set(names) - {"up_proj"}:
        content = f"{text.CALIBRATION}\n{text.EVALUATION}"
        ids = tokens(checkpoint, read_text(options.text) or content)
        ids = ids[: options.tokens]
        kept = dict(zip("KV", capture_kv(checkpoint.model, ids)[options.layer], strict=True))
        for name in names:
            if name != "up_proj":
                matrix = kept[name[0]].detach().half()
                yield name, matrix.float() if name in _WIDE else matrix, 32 if name in _WIDE else 16


def _matrices(options: argparse.Namespace) -> Iterator[tuple]:
    """(name, seed, matrix, bits of an element)."""
    for seed in options.seeds:
        for name in options.data:
            plain = name.removesuffix(", outliers")
            if plain in _SETS:
                yield name, seed, synthetic(*_SETS[plain], plain != name, seed), 32
    for name, matrix, bits in _real(options):
        for seed in options.seeds:
            yield name, seed, matrix, bits


def _trained(matrix: "Tensor", shape: QetShape, seed: int) -> "QetMatrix":
    from golden.qet.matrix import quantize, training_for

    return quantize(matrix, shape, training_for(shape, seed))


def _wanted(tables: Collection[str], ratio: int, ratios: Collection[int]) -> set[str]:
    """The methods that ``tables`` have at a ratio."""
    found: set[str] = set()
    if ratio in ratios:
        if "ratios" in tables:
            found |= {"PQ", *_BESIDE}
        if "rtn" in tables:
            found |= {"QET", "RTN"}
        if ratio in _TABLE1 and "table1" in tables:
            found |= {"PQ", "QET"}
        if ratio == _HEADLINE and "headline" in tables:
            found |= {"PQ", "Vanilla", "QET"}
        if ratio == _HEADLINE and "ablation" in tables:
            found |= {"Vanilla", "RQO", "CQO", "QET"}
    if ratio in _MEET and "meet" in tables:
        found |= {"Vanilla", "QET"}
    return found


def _measure(
    name: str, seed: int, matrix: "Tensor", bits: int, options: argparse.Namespace
) -> Iterator[tuple[Key, dict[str, float]]]:
    """Errors of every method of the tables at every ratio that it reaches."""
    from golden.index.lloyd import Training
    from golden.qet.metrics import errors
    from golden.qet.rivals import ROTATED, SPANS, VARIANTS, RotatedShape, rotate, round_to_nearest

    rows, columns = matrix.shape
    training, ratios = Training(seed=seed, few=True), options.ratios
    for ratio in (*ratios, *(each for each in _MEET if each not in ratios)):
        wanted = _wanted(options.table, ratio, ratios)
        for method, variant in VARIANTS.items():
            if method not in wanted:
                continue
            try:
                shape = variant.shape(rows, columns, bits, Fraction(ratio))
            except ConfigError:
                continue
            restored = _trained(matrix, shape, seed).real()
            books = sum(shape.codebook_bits(stage) for stage in shape.stages)
            left = matrix.double() - restored
            found = {
                "mse": errors(matrix, restored).mse,
                "books": books / shape.stored_bits,
                "range": float((left.max() - left.min()) / (matrix.max() - matrix.min())),
            }
            yield (name, ratio, method, seed), found
        for method, cells in ROTATED.items():
            if method not in wanted:
                continue
            asked = RotatedShape(rows=rows, columns=columns, element_bits=bits, cells=cells)
            try:
                rotated = rotate(matrix, asked.solve(Fraction(ratio)), training)
            except ConfigError:
                continue
            yield (name, ratio, method, seed), {"mse": errors(matrix, rotated.matrix).mse}
        for span, on_top in itertools.product(SPANS, (False, True)) if "RTN" in wanted else ():
            try:
                rounded = round_to_nearest(matrix, Fraction(ratio), span, bits, on_top=on_top)
            except ConfigError:
                continue
            found = {
                "mse": errors(matrix, rounded.matrix).mse,
                "bits": rounded.bits,
                "stored": rounded.stored_bits / (rows * columns),
            }
            yield (name, ratio, _rounding(span, on_top), seed), found
    for entries in _EQUAL if "levels" in options.table else ():  # whatever memory that takes
        for method, levels in _equal():
            stages = tuple(Stage(levels=each, entries=min(entries, rows)) for each in levels)
            shape = QetShape(
                rows=rows, columns=columns, element_bits=bits, stages=stages,
                entry_bits=10 if len(levels) > 1 else 0,
            )  # fmt: skip
            restored = _trained(matrix, shape, seed).real()
            yield (name, -entries, method, seed), {"mse": errors(matrix, restored).mse}


def _rounding(span: str, on_top: bool) -> str:
    return f"RTN {span}, on top" if on_top else f"RTN {span}"


def _equal() -> list[tuple[str, tuple[int, ...]]]:
    """Methods at equal k and the levels of their stages."""
    from golden.qet.rivals import VARIANTS

    plain = [(f"{levels} levels", (levels,)) for levels in range(4)]
    return [*plain, ("QET", VARIANTS["QET"].levels)]


Found = dict[Key, dict[str, float]]


def _ratios_of(
    found: Found, name: str, ratio: int, over: str, under: str, what: str = "mse"
) -> list[float]:
    """``over`` by ``under`` for each seed that has both."""
    seeds = sorted({key[3] for key in found if key[0] == name})
    pairs = [
        (found.get((name, ratio, over, seed)), found.get((name, ratio, under, seed)))
        for seed in seeds
    ]
    return [one[what] / two[what] for one, two in pairs if one and two and two[what]]


def _shown(values: list[float], percent: bool = True, digits: int = 2) -> str:
    """Mean, and the span of the seeds where they differ."""
    if not values:
        return "-"
    scale = 100 if percent else 1
    figures = (_mean(values), min(values), max(values))
    mean, low, high = (f"{scale * each:.{digits}f}" for each in figures)
    return mean if low == high else f"{mean} ({low}..{high})"


def _quotients(found: Found, name: str, ratios: list[int], over: str) -> tuple[list, list]:
    """Quotients by seed, of ratios both reach: means of quotients by QET, quotients of means."""
    means, quotients = [], []
    for seed in sorted({key[3] for key in found if key[0] == name}):
        keys = [((name, ratio, over, seed), (name, ratio, "QET", seed)) for ratio in ratios]
        pairs = [(found[a]["mse"], found[b]["mse"]) for a, b in keys if {a, b} <= found.keys()]
        if pairs:
            means.append(_mean([one / two for one, two in pairs]))
            quotients.append(sum(one for one, _ in pairs) / sum(two for _, two in pairs))
    return means, quotients


def _rtn_rows(found: Found, name: str, ratios: list[int]) -> Iterator[list[str]]:
    """Yields the rows of one set of data: each range, within the memory and on top of it."""
    seed = min((key[3] for key in found if key[0] == name), default=0)
    for span, label in (("matrix", "matrix"), ("row", "row"), ("group", "64 of a row")):
        for on_top in (False, True):
            method = _rounding(span, on_top)
            made = [found.get((name, ratio, method, seed)) for ratio in ratios]
            if not any(made):
                continue
            means, quotients = _quotients(found, name, ratios, method)
            yield [
                name, label, "on top" if on_top else "within",
                ", ".join(f"{each['bits']:.0f}" if each else "-" for each in made),
                ", ".join(f"{each['stored']:.2f}" if each else "-" for each in made),
                _shown(_ratios_of(found, name, _HEADLINE, method, "QET"), percent=False, digits=4),
                _shown(means, percent=False), _shown(quotients, percent=False),
                _PAPER.get(name, ("", "", ""))[2],
            ]  # fmt: skip


def sections(
    found: Found, settings: list[tuple[str, str]], tables: Collection[str] = TABLES
) -> dict[str, str]:
    """Returns the page's sections by marker, those of ``tables`` alone."""
    names = [name for name in DATA if any(key[0] == name for key in found)]
    # A ratio of _MEET may have no product quantization, and a number below 0 is one of entries.
    kinds = ("PQ", "RTN")
    ratios = sorted({key[1] for key in found if key[1] > 0 and key[2].startswith(kinds)})
    meet = [each for each in _MEET if any(key[1] == each for key in found)]

    headline, growth, equal, ablation, meeting = [], [], [], [], []
    spans: list[list[str]] = []
    for name in names:

        def cell(over: str, under: str, ratio: int = _HEADLINE, name: str = name) -> str:
            return _shown(_ratios_of(found, name, ratio, over, under))

        paper = _PAPER.get(name, ("", "", ""))
        headline.append([name, cell("Vanilla", "PQ"), paper[0], cell("QET", "PQ"), paper[1]])
        ablation.append([name, *(cell(each, "Vanilla") for each in ("RQO", "CQO", "QET"))])
        for method in _BESIDE:
            cells = [cell(method, "PQ", ratio) for ratio in ratios]
            if set(cells) != {"-"}:
                growth.append([name, method, *cells])
        meeting.append([name, *(cell("Vanilla", "QET", ratio) for ratio in meet)])
        spans += _rtn_rows(found, name, ratios)
        for entries in _EQUAL:
            several = [cell(method, "0 levels", -entries) for method, _ in _equal()[1:]]
            equal.append([name, str(entries), *several])
    shares = []
    for ratio in (4, 8, 12):
        for name in names:
            row: list[str] = [str(ratio), name]
            for method in ("PQ", "QET"):
                of = [each for key, each in found.items() if key[:3] == (name, ratio, method)]
                row += [_shown([each[what] for each in of]) for what in ("range", "books")]
            if row[2] != "-" or row[4] != "-":
                shares.append([*row, *_TABLE1[ratio]])
    at = [f"ratio {ratio}" for ratio in ratios]
    made = {
        "qet_settings": table(("setting", "value"), settings, align_right=False),
        "qet_headline": table(
            ("data", "Vanilla, %", "paper", "QET, %", "paper"), headline
        ),
        "qet_ratios": table(("data", "method", *at), growth),
        "qet_meet": table(("data", *(f"ratio {each}" for each in meet)), meeting),
        "qet_ablation": table(("data", "RQO", "CQO", "both: QET"), ablation),
        "qet_rtn": table(
            ("data", "range", "ranges", "bits of an element", "bits stored", "ratio 4",
             "mean of quotients", "quotient of means", "paper"), spans,
        ),
        "qet_levels": table(
            ("data", "k", "1 level", "2 levels", "3 levels: Vanilla", "QET"), equal
        ),
        "qet_table1": table(
            ("ratio", "data", "PQ: range left", "PQ: codebooks", "QET: range left",
             "QET: codebooks", "paper: range", "paper: codebooks"), shares,
        ),
    }  # fmt: skip
    chosen = {"qet_settings", *(f"qet_{each}" for each in tables)}
    return {name: text for name, text in made.items() if name in chosen}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _arguments() -> argparse.ArgumentParser:
    parser = command.Parser(
        prog="python -m golden.llm.reports.qet_claims",
        description="Measure the figures of QET's claims, and write the tables of a page.",
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), metavar="NAME",
                        help=f"of {', '.join(DATA)}; default all")  # fmt: skip
    parser.add_argument("--ratios", type=int, nargs="+", default=list(_RATIOS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--layer", type=int, default=_LAYER, help="of SmolLM2-135M")
    parser.add_argument("--text", type=Path, metavar="FILE",
                        help="plain or .jsonl, of K and V; the built-in texts if none")  # fmt: skip
    parser.add_argument("--tokens", type=int, help="most of K and V; all if none")
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES),
                        help="measure what these need; default all")  # fmt: skip
    add_page(parser, PAGE)
    return parser


def _run(options: argparse.Namespace) -> int:
    prepare(options)
    say = command.elapsed(lambda line: print(line, file=sys.stderr))
    found: Found = {}
    sizes = {}
    for name, seed, matrix, bits in _matrices(options):
        say(f"{name}, seed {seed}")
        sizes[name] = f"{matrix.shape[0]} x {matrix.shape[1]}, FP{bits}"
        found |= dict(_measure(name, seed, matrix, bits, options))
    settings = [
        ("seeds", ", ".join(map(str, options.seeds))),
        ("groups", "8 columns"),
        ("model, layer", f"SmolLM2-135M, {options.layer}"),
        ("ratios", ", ".join(map(str, options.ratios))),
        ("text of K and V", options.text.name if options.text else "built-in"),
        *sizes.items(),
    ]
    give(options.page, sections(found, settings, options.table))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    options = _arguments().parse_args(arguments)
    return status("qet_claims", lambda: _run(options))


if __name__ == "__main__":
    command.run("golden.llm.reports.qet_claims", main)
