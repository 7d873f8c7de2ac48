"""One small vector from words to records and back: ``python -m golden.oaken.example``.

The vector has two heads of 16 elements in blocks of 16, and thresholds -1, -1/16, 1/16 and 1. It
holds every group on every side, an exact tie, and a zero of either sign. docs/oaken.md shows what
this prints.
"""

from typing import TYPE_CHECKING

from golden import command
from golden.oaken.format import Group, ScaleWord, Threshold

if TYPE_CHECKING:
    from torch import Tensor

HEAD_DIM = BLOCK = 16
THRESHOLDS = (-1.0, -1 / 16, 1 / 16, 1.0)
_X = (
    *(0.5, -0.25, 0.0, -0.0, 1.0, 1.0625, -1.5, 0.0625, 0.063, -0.0625, -0.07, 0.03, 0.8, -0.9),
    *(0.3, -0.4),
    *(2.5, -3.0, 0.01, -0.02, 0.11, 0.22, -0.33, 0.44, -0.55, 0.66, -0.77, 0.88, -0.99, 0.05),
    *(-0.05, 1.75),
)


def _hex(words: "Tensor") -> str:
    return " ".join(f"{word:04x}" for word in words.tolist())


def example() -> str:
    """The lines that are printed."""
    import torch

    from golden.fp16.ops import bits_from_float
    from golden.oaken.quantize import decode, decompose, encode, pack_token, zero_point

    x = bits_from_float(torch.tensor([_X], dtype=torch.float64))
    thresholds = bits_from_float(torch.tensor(THRESHOLDS, dtype=torch.float64))
    y, _, _ = decompose(x, thresholds)
    encoded = encode(x, thresholds, BLOCK)
    back = decode(encoded, thresholds)
    names = " ".join(each.name for each in Threshold)
    lines = [f"thresholds ({names})", f"  {_hex(thresholds)}"]
    for head in range(len(_X) // HEAD_DIM):
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        letters = [Group(each).name[:2].lower() for each in encoded.group[0, part].tolist()]
        lines += [
            f"head {head}",
            f"  x      {_hex(x[0, part])}",
            "  group  " + " ".join(f"{each:>4}" for each in letters),
            f"  y      {_hex(y[0, part])}",
            "  code   " + " ".join(f"{each:4x}" for each in encoded.code[0, part].tolist()),
            "  fifth  " + " ".join(f"{each:4x}" for each in encoded.fifth[0, part].tolist()),
            f"  x'     {_hex(back[0, part])}",
        ]
    lines.append("scale words")
    for each in ScaleWord:
        lines.append(f"  {each.name:<15} {encoded.scale[0, each].item():04x}")
    lines.append(f"  zero point      {zero_point(encoded.scale)[0].item()}")
    lines.append("records, in the order of the slots")
    records = pack_token(encoded, 0, HEAD_DIM, BLOCK)
    kinds = [f"{kind} {head}" for head in range(len(records) // 2) for kind in ("dense", "sparse")]
    for kind, record in zip([*kinds, "scale"], records, strict=True):
        lines.append(f"  {kind:<9}{record.hex(' ')}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0."""
    parser = command.Parser(
        prog="python -m golden.oaken.example", description=(__doc__ or "").splitlines()[0]
    )
    parser.parse_args(arguments)
    print(example())
    return 0


if __name__ == "__main__":
    command.run("golden.oaken.example", main)
