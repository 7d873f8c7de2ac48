"""E8P's entries and errors: ``python -m golden.llm.reports.lattice``, for docs/vqllm-lattice.md.

All errors are of random Gaussian vectors: sum of squared errors over the sum of squares.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from golden import command
from golden.llm.eval.accuracy.arguments import ROOT
from golden.markers import rewrite, table

PAGE = ROOT / "docs" / "vqllm-lattice.md"
_UNITS = (14, 15, 16, 17, 18, 20, 24)  # of stage 2, in 64ths
_SPREADS = (1.0, 1.05, 1.1, 1.15, 1.2)
_SEED = 5


def _entries() -> str:
    """Runs of entries of equal norm and equal magnitudes."""
    from golden.vqllm.lattice import entries

    found = entries()
    kinds: dict[tuple[int, tuple[int, ...]], list[list[int]]] = {}
    for halves in found.tolist():
        counts = tuple(sum(abs(k) == each for k in halves) for each in (1, 3, 5))
        kinds.setdefault((sum(k * k for k in halves) // 4, counts), []).append(halves)
    rows = []
    for (norm, counts), own in kinds.items():
        odd = "yes" if counts[1] % 2 else "no"
        first = min(found.tolist().index(each) for each in own)
        example = " ".join(map(str, found[first].tolist()))
        rows.append([norm, *counts, len(own), odd, first, example])
    head = ("squared norm", "1/2", "3/2", "5/2", "entries", "element 7 negative", "first index")
    return table((*head, "that entry, in halves"), rows)


def _least(vectors: Any, halves: Any) -> Any:
    """Squared distances (n,) to the nearest point with any entries (m, 8)."""
    import torch

    magnitude, odd = halves.abs().float() / 2, (halves < 0).any(1)
    found = []
    for shift in (-0.25, 0.25):
        moved = vectors - shift
        size = moved.abs()
        least = (size[:, None] * magnitude).amin(2)
        wrong = ((moved < 0).sum(1) & 1).bool()[:, None] != odd
        product = size @ magnitude.T - 2 * wrong * least
        distance = (magnitude**2).sum(1) - 2 * product + (size**2).sum(1, keepdim=True)
        found.append(distance.amin(1))
    return torch.minimum(*found)


def _padding(vectors: Any) -> str:
    import torch

    from golden.vqllm.config import LATTICE_ENTRIES
    from golden.vqllm.lattice import entries
    from golden.vqllm.quip import SPREAD

    whole = entries()[entries().square().sum(1) <= 40]
    count = LATTICE_ENTRIES - len(whole)
    shell = torch.tensor([v for v in itertools.product((1, 3, 5), repeat=8)
                          if sum(k * k for k in v) == 48])  # fmt: skip
    shell[shell.sum(1) // 2 % 2 == 1, -1] *= -1
    peak = (shell.abs() == 5).any(1)
    choices = {
        "none": shell[:0],
        "the first 29 without 5/2 (ours)": shell[~peak][:count],
        "the last 29 without 5/2": shell[~peak][-count:],
        "the first 29 with 5/2": shell[peak][:count],
        "all 224, more than a code names": shell,
    }
    scaled, power = vectors / SPREAD[1], float(vectors.square().sum())
    rows = []
    for name, some in choices.items():
        halves = torch.cat((whole, some))
        parts = [_least(part, halves).sum() for part in scaled.split(1 << 10)]
        rows.append([name, len(halves), f"{float(sum(parts)) * SPREAD[1] ** 2 / power:.5f}"])
    return table(("entries of norm 12", "entries", "error of one stage"), rows)


def _scales(vectors: Any) -> str:
    from golden.vqllm.lattice import decode, encode

    rows = []
    for spread in _SPREADS:
        x = vectors.double() / spread
        first = x - decode(encode(x, 1))
        power = float(x.square().sum())
        cells = [f"{float(first.square().sum()) / power:.5f}"]
        for unit in _UNITS:
            left = first * 64 / unit
            error = (left - decode(encode(left, 1))) * unit / 64
            cells.append(f"{float(error.square().sum()) / power:.5f}")
        rows.append([spread, *cells])
    names = (f"unit {unit}/64" for unit in _UNITS)
    return table(("scale over deviation", "one stage", *names), rows)


def _look_ups(vectors: Any) -> str:
    from golden.vqllm.access import AccessProfile
    from golden.vqllm.lattice import encode
    from golden.vqllm.quip import SPREAD

    index = encode(vectors / SPREAD[2]) >> 8
    rows = []
    for stage in range(2):
        profile = AccessProfile(index[:, stage].bincount(minlength=256))
        first = [float((index[:, stage] < count).double().mean()) for count in (16, 37, 128)]
        cells = [f"{100 * each:.1f} %" for each in (*first, profile.share(37))]
        rows.append([stage, *cells, int(profile.above()), f"{100 * profile.below_mean():.0f} %"])
    head = ("stage", *(f"entries 0..{count - 1}" for count in (16, 37, 128)))
    return table((*head, "hottest 37", "above mean + 3 sigma", "below the mean"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """0."""
    parser = command.Parser(
        prog="python -m golden.llm.reports.lattice",
        description="Entries of the lattice codebook, its padding, scales and look-ups.",
    )
    parser.add_argument("--vectors", type=int, default=20000, help="random vectors of 8")
    parser.add_argument("--page", action="store_true", help=f"rewrite {PAGE.name}")
    options = parser.parse_args(arguments)
    import torch  # after the arguments

    if options.vectors < 1:
        parser.error(f"--vectors must be at least 1, not {options.vectors}")
    vectors = torch.randn(options.vectors, 8, generator=torch.Generator().manual_seed(_SEED))
    made = {
        "lattice_entries": _entries(),
        "lattice_padding": _padding(vectors),
        "lattice_scales": _scales(vectors),
        "lattice_look_ups": _look_ups(vectors),
    }
    for name, body in made.items():
        print(f"\n{name}\n\n{body}")
    if options.page:
        rewrite(PAGE, made)
    return 0


if __name__ == "__main__":
    command.run("golden.llm.reports.lattice", main)
