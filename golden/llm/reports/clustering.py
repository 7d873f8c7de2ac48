"""Indices that are not the nearest centroid: ``python -m golden.llm.reports.clustering``."""

from typing import TYPE_CHECKING

from golden import command

if TYPE_CHECKING:
    from torch import Tensor


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0."""
    parser = command.Parser(
        prog="python -m golden.llm.reports.clustering",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.parse_args(arguments)
    return measure()


def measure(tokens: int = 64) -> int:
    """Print the share of elements whose index is not that of the nearest centroid.

    ``tokens`` of 4096 elements, 0.5 % outliers on either side, k-means codebooks trained on 8 other
    tokens of the same distribution.
    """
    import torch

    from golden.fp16.ops import bits_from_float
    from golden.index.nearest import mismatch
    from golden.kllm.quantize import split_outliers, train_activation_codebook

    generator = torch.Generator().manual_seed(1)

    def normal() -> "Tensor":
        return torch.randn(tokens, 4096, generator=generator, dtype=torch.float64)

    def laplace() -> "Tensor":
        uniform = torch.rand(tokens, 4096, generator=generator, dtype=torch.float64) - 0.5
        return -uniform.sign() * torch.log1p(-2 * uniform.abs())

    def channels() -> "Tensor":
        """Channels of log-normal size: a few are large, as in a decoder's hidden states."""
        size = torch.exp(torch.randn(4096, generator=generator, dtype=torch.float64))
        return normal() * size

    print("| data | 3 bits | 4 bits |\n|---|---|---|")
    for name, draw in (("normal", normal), ("Laplace", laplace), ("channels", channels)):
        shares = []
        for bits in (3, 4):
            codebook = train_activation_codebook(bits_from_float(draw()[:8]), bits)
            x = bits_from_float(draw())
            outlier, scale, _ = split_outliers(x)
            shares.append(f"{mismatch(x, scale, codebook, ~outlier):.1e}")
        print(f"| {name} | {' | '.join(shares)} |")
    return 0


if __name__ == "__main__":
    command.run("golden.llm.reports.clustering", main)
