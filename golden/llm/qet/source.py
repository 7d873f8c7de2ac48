"""A matrix named on the command line: ``FILE.npy`` or ``TENSOR@MODEL``."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm import checkpoint

_BITS = {"float16": 16, "float32": 32}


def matrix_of(source: str, bits: int | None) -> tuple[Tensor, int]:
    """The matrix and the bits of its elements; bits: in the place of those that it has.

    A tensor of a model has 32. ConfigError, one line: no such file or tensor, another type or
    number of dimensions. CheckpointError: the model cannot be loaded.
    """
    name, at, model = source.rpartition("@")
    if at and not Path(source).exists():
        if not model:
            raise ConfigError(f"{source}: a model must follow the @, such as smollm2")
        loaded = checkpoint.load(model)
        tensors = dict(loaded.model.named_parameters())
        if name not in tensors:
            raise ConfigError(f"{loaded.name} has no tensor {name!r}")
        matrix, own = tensors[name].detach(), 32
    else:
        try:
            array = np.load(source, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ConfigError(f"{source}: {checkpoint.reason(error)}") from None
        kind = str(array.dtype)
        if kind not in _BITS:
            raise ConfigError(f"{source}: its elements must be float16 or float32, not {kind}")
        matrix, own = torch.from_numpy(array), _BITS[kind]
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise ConfigError(f"{source}: must have rows and columns, not {tuple(matrix.shape)}")
    return matrix, bits or own
