"""Weights in the layout of published AQLM checkpoints.

| tensor | shape | type |
|---|---|---|
| codes | (out groups, in groups, codebooks) | int8 up to 256 entries, else int16 |
| codebooks | (codebooks, entries, out group size, in group size) | a float |
| scales | (out groups, 1, 1, 1) | a float |

A code of b bits is stored as the signed number equal to it modulo 2**b. A vector is
``scale * sum over codebooks of C[codebook][code]``. Groups of several outputs are refused. Source:
the package ``aqlm`` 1.1.7, ``aqlm.inference.QuantizedLinear`` and ``aqlm.utils``.
"""

from pathlib import Path

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.packet import normalised
from golden.vqllm.config import MatrixShape, VqShape
from golden.vqllm.matrix import VqMatrix

_PARTS = ("codes", "codebooks", "scales")


def _code_type(bits: int) -> torch.dtype:
    return torch.int8 if bits <= 8 else torch.int16


def from_published(codes: Tensor, codebooks: Tensor, scales: Tensor) -> VqMatrix:
    """The matrix of a layer's tensors, its codebooks and scales rounded to FP16.

    FP16 codebooks keep every bit of an entry of at least 2**-14 times the scale of all codebooks.
    Smaller entries, and those of other types, are rounded. ConfigError in one line: a shape, a
    type or a value that the layout does not have, or groups of several outputs.
    """
    if codebooks.ndim != 4:
        raise ConfigError(f"codebooks must have 4 dimensions, not {codebooks.ndim}")
    stages, entries, out_size, size = codebooks.shape
    if out_size != 1:
        raise ConfigError(f"out group size must be 1, not {out_size}")
    vq = VqShape(size=size, entries=entries, stages=stages)
    if codes.ndim != 3 or codes.shape[2] != stages:
        raise ConfigError(f"codes must be (out, in, {stages}), not {tuple(codes.shape)}")
    wanted = _code_type(vq.code_bits)
    if codes.dtype != wanted:
        raise ConfigError(f"codes must be {wanted} for {entries} entries, not {codes.dtype}")
    rows = codes.shape[0]
    if tuple(scales.shape) != (rows, 1, 1, 1):
        raise ConfigError(f"scales must be ({rows}, 1, 1, 1), not {tuple(scales.shape)}")
    for name, value in (("codebooks", codebooks), ("scales", scales)):
        if not value.is_floating_point():
            raise ConfigError(f"{name} must be floating-point, not {value.dtype}")
        if not bool(torch.isfinite(value).all()):
            raise ConfigError(f"{name} must be finite")
    lowest, highest = -(entries // 2), entries // 2 - 1
    least, most = int(codes.min()), int(codes.max())
    if not lowest <= least <= most <= highest:
        wrong = least if least < lowest else most
        raise ConfigError(f"codes must be {lowest}..{highest}, not {wrong}")
    factor = bits_from_float(scales.double().flatten())
    if bool(((factor & 0x7FFF) >= FP16.infinity).any()):
        largest = float(scales.double().abs().max())
        raise ConfigError(f"scales must be within FP16, not {largest:g}")
    words, exponent = normalised(codebooks[:, :, 0].double())
    shape = MatrixShape(rows=rows, columns=codes.shape[1] * size, vq=vq)
    return VqMatrix(shape, words[None], exponent, codes.long() % entries, factor)


def to_published(matrix: VqMatrix) -> dict[str, Tensor]:
    """codes, codebooks and scales of a matrix with codebooks of its own, both in float32.

    ConfigError: its codebooks are of tiles.
    """
    vq = matrix.shape.vq
    if len(matrix.shape.tiles) > 1:
        grid = " x ".join(map(str, matrix.shape.grid))
        raise ConfigError(f"codebooks must be of the whole matrix, not of {grid} tiles")
    codes = torch.where(matrix.codes < vq.entries // 2, matrix.codes, matrix.codes - vq.entries)
    books = float_from_bits(matrix.codebooks[0], FP16) * 2.0**matrix.exponent
    scales = torch.ones(matrix.shape.rows, device=books.device)
    if matrix.scales is not None:
        scales = float_from_bits(matrix.scales, FP16).float()
    return {
        "codes": codes.to(_code_type(vq.code_bits)),
        "codebooks": books.float()[:, :, None],
        "scales": scales[:, None, None, None],
    }


def layers_of(path: Path) -> list[str]:
    """Names of the layers of a safetensors file that have the three tensors, in order of name."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
    found = {name.removesuffix(".codes") for name in names if name.endswith(".codes")}
    return sorted(each for each in found if all(f"{each}.{part}" in names for part in _PARTS))


def load_published(path: Path, layer: str) -> VqMatrix:
    """A layer of a safetensors file; ConfigError in one line: it has none of that name."""
    from safetensors import safe_open

    known = layers_of(path)
    if layer not in known:
        raise ConfigError(f"layer must be one of {', '.join(known) or 'none'}, not {layer!r}")
    with safe_open(path, framework="pt") as file:
        return from_published(*(file.get_tensor(f"{layer}.{part}") for part in _PARTS))
