"""Product quantization and residual quantization of vectors, trained, fast and bit-true.

A vector of d elements has M parts of d / M elements. Each part has a codebook of 2**bits entries,
and the code of the part is the number of the nearest entry. The sum over the parts of a table
``q_m . C_m[j]`` at the codes is the product of q with the decoded vector.
Source: Jegou, Douze, Schmid, "Product quantization for nearest neighbor search".
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from golden.config import Config, ConfigError, bounded
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index import lloyd
from golden.index.format import CODE_BITS_MAX, CODE_BITS_MIN
from golden.index.lloyd import DEFAULT, Training
from golden.index.packet import check_words

TRAINING_VECTORS = 39  # per entry, the least that k-means is trained with (faiss warns below it)
_GRID = -FP16.grid_exponent  # FP16 words are integers times 2**-24
_LOW = 30  # bits of the lower limb of an exact distance
_SPLIT = 20  # bits of the lower part of x
_SUB_MAX = 256  # elements of a part that the limbs have room for


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductShape(Config):
    """Parts and codes of a vector."""

    dim: int = bounded(128, 1, 1 << 16, "elements of a vector, a multiple of subspaces")
    subspaces: int = bounded(64, 1, 1 << 16, "M")
    bits: int = bounded(8, CODE_BITS_MIN, CODE_BITS_MAX, "of a code")

    def __post_init__(self) -> None:
        if self.dim % self.subspaces:
            self._refuse("dim", f"a multiple of subspaces = {self.subspaces}")

    @property
    def entries(self) -> int:
        return 1 << self.bits

    @property
    def sub(self) -> int:
        """Elements of one part."""
        return self.dim // self.subspaces

    def check_vectors(self, count: int, few: bool = False) -> None:
        """ConfigError: fewer than 39 training vectors per entry, unless ``few``; or none."""
        least = 1 if few else TRAINING_VECTORS * self.entries
        if count < least:
            raise ConfigError(
                f"training vectors must be at least {least} for {self.entries} entries, not {count}"
            )


@dataclasses.dataclass(frozen=True)
class ProductQuantizer:
    """codebook: (M, entries, d / M) real numbers."""

    codebook: Tensor

    @classmethod
    def train(
        cls,
        vectors: Tensor,
        shape: ProductShape,
        weight: Tensor | None = None,
        training: Training = DEFAULT,
        progress: Callable[[int, float], None] | None = None,
    ) -> "ProductQuantizer":
        """Codebooks of vectors (n, d) by ``lloyd.kmeans``.

        weight: (n,) of the vectors, or (n, d) of their elements, whose mean over a part weighs the
        part. ConfigError: fewer than 39 vectors per entry, unless ``training.few``.
        """
        if vectors.ndim != 2 or vectors.shape[1] != shape.dim:
            raise ConfigError(f"vectors must have {shape.dim} elements")
        shape.check_vectors(len(vectors), training.few)
        if weight is not None and weight.ndim == 2:
            weight = weight.unflatten(1, (shape.subspaces, shape.sub)).mean(-1).T
        found = lloyd.kmeans(
            vectors.unflatten(1, (shape.subspaces, shape.sub)).transpose(0, 1),
            shape.entries,
            weight,
            training,
            progress,
        )
        return cls(found.centroids)

    @property
    def subspaces(self) -> int:
        return self.codebook.shape[0]

    @property
    def dim(self) -> int:
        return self.subspaces * self.codebook.shape[2]

    def encode(self, vectors: Tensor) -> Tensor:
        """(..., d) to codes (..., M) int64, by float arithmetic; ``exact_codes`` is bit-true."""
        parts = self._parts(vectors).flatten(0, -3).transpose(0, 1)
        codes = lloyd.assign(parts.contiguous(), self.codebook.to(parts.device))
        return codes.T.reshape(*vectors.shape[:-1], self.subspaces)

    def decode(self, codes: Tensor) -> Tensor:
        """(..., M) to (..., d)."""
        part = torch.arange(self.subspaces, device=codes.device)
        return self.codebook.to(codes.device)[part, codes.long()].flatten(-2)

    def tables(self, queries: Tensor) -> Tensor:
        """``q_m . C_m[j]``: (..., d) to (..., M, entries)."""
        codebook = self.codebook.to(queries.device, queries.dtype)
        return torch.einsum("...mi,mji->...mj", self._parts(queries), codebook)

    def _parts(self, vectors: Tensor) -> Tensor:
        return vectors.unflatten(-1, (self.subspaces, self.codebook.shape[2]))


@dataclasses.dataclass(frozen=True)
class ResidualQuantizer:
    """stages: each quantizes what the ones before it leave; the decoded vector is their sum."""

    stages: tuple[ProductQuantizer, ...]

    @classmethod
    def train(
        cls,
        vectors: Tensor,
        shape: ProductShape,
        stages: int,
        weight: Tensor | None = None,
        training: Training = DEFAULT,
        progress: Callable[[int, float], None] | None = None,
    ) -> "ResidualQuantizer":
        """``stages`` quantizers of one shape, trained with the seeds that follow training.seed."""
        if stages < 1:
            raise ConfigError(f"stages must be at least 1, not {stages}")
        trained = []
        left = vectors
        for stage in range(stages):
            own = dataclasses.replace(training, seed=training.seed + stage)
            one = ProductQuantizer.train(left, shape, weight, own, progress)
            left = left - one.decode(one.encode(left))
            trained.append(one)
        return cls(tuple(trained))

    def encode(self, vectors: Tensor) -> Tensor:
        """(..., d) to codes (..., stages, M): each stage takes the nearest entry on its own."""
        codes = []
        for stage in self.stages:
            codes.append(stage.encode(vectors))
            vectors = vectors - stage.decode(codes[-1])
        return torch.stack(codes, -2)

    def decode(self, codes: Tensor) -> Tensor:
        """(..., stages, M) to (..., d)."""
        parts = codes.unbind(-2)
        decoded = [stage.decode(part) for stage, part in zip(self.stages, parts, strict=True)]
        return torch.stack(decoded).sum(0)

    def tables(self, queries: Tensor) -> Tensor:
        """(..., d) to (..., stages, M, entries)."""
        return torch.stack([stage.tables(queries) for stage in self.stages], -3)


def exact_codes(x_words: Tensor, words: Tensor, exponent: int, bits: int) -> Tensor:
    """``argmin over j of sum_i (x_i - 2**exponent * C_m[j][i])**2``, exact: (..., M) int64.

    x_words: (..., d) finite FP16 words; words: (M, entries, d / M) FP16 words of magnitude <= 1,
    at most 2**bits entries. Equal distances give the lowest index. ValueError: NaN or infinity in
    x_words. ConfigError: a codebook that ``packet.check_words`` refuses, or too many entries.

    The distance less ``sum of x**2`` is ``2**exponent * sum C**2 - 2 * sum x C``, times
    2**exponent. float64 finds the entries that may be nearest. Integers decide between them.
    """
    check_words(words, exponent)
    subspaces, entries, sub = words.shape
    if entries > 1 << bits:
        raise ConfigError(f"codebook must have at most {1 << bits} entries, not {entries}")
    if sub > _SUB_MAX:
        raise ConfigError(f"codebook must have parts of 1..{_SUB_MAX} elements, not {sub}")
    if x_words.shape[-1] != subspaces * sub:
        raise ConfigError(f"vectors must have {subspaces * sub} elements, not {x_words.shape[-1]}")
    if bool(((x_words.long() & 0x7FFF) >= FP16.infinity).any()):
        raise ValueError("x must be finite")
    x = float_from_bits(x_words, FP16).reshape(-1, subspaces, sub)
    c = float_from_bits(words, FP16)
    codes = torch.empty(x.shape[:2], dtype=torch.int64, device=x.device)
    step = max(1, (1 << 18) // entries)
    for m in range(subspaces):
        square = (c[m] ** 2).sum(1) * 2.0**exponent
        # Twice the rounding errors of any order of the sum, for every entry of this codebook.
        margin = 2 * (x[:, m].abs().sum(1) + sub * 2.0**exponent) * 2 * (sub + 2) * 2.0**-52
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            d = torch.addmm(square, x[part, m], c[m].T, alpha=-2)
            best, index = d.min(1)
            near = d <= (best + margin[part])[:, None]
            index[:] = near.byte().argmax(1)
            tied = (near.sum(1) > 1).nonzero().flatten()
            if len(tied):
                index[tied] = _decide(x[part, m][tied], c[m], near[tied], exponent)
            codes[part, m] = index
    return codes.reshape(*x_words.shape[:-1], subspaces)


def _decide(x: Tensor, c: Tensor, near: Tensor, exponent: int) -> Tensor:
    """The nearest of the entries ``near`` (n, entries) for x (n, sub), by exact integers: (n,).

    In units of 2**-56 a distance is ``2**(exponent + 8) Q - 2**9 X`` with Q = sum C**2 and
    X = sum x C of integers. It is kept as ``high * 2**30 + low``.
    """
    row, entry = near.nonzero().unbind(1)
    x_int = (x * 2.0**_GRID).long()[row]
    c_int = (c * 2.0**_GRID).long()[entry]
    square = (c_int**2).sum(1)
    upper = ((x_int >> _SPLIT) * c_int).sum(1)  # X = upper * 2**20 + lower
    lower = ((x_int & ((1 << _SPLIT) - 1)) * c_int).sum(1)
    mask = (1 << _LOW) - 1
    shift = exponent + 8
    high = ((square >> _LOW) << shift) - (upper >> 1)
    low = ((square & mask) << shift) - ((upper & 1) << (_LOW - 1)) - (lower << 9)
    high += low >> _LOW
    low &= mask
    most = torch.iinfo(torch.int64).max
    least = torch.full((len(x),), most, device=x.device).scatter_reduce(0, row, high, "amin")
    low = torch.where(high == least[row], low, most)
    least = torch.full((len(x),), most, device=x.device).scatter_reduce(0, row, low, "amin")
    first = torch.where((low == least[row]) & (low < most), entry, most)
    return torch.full((len(x),), most, device=x.device).scatter_reduce(0, row, first, "amin")
