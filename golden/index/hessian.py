"""The factor of an inverse Hessian by which an error feeds back to the columns after it (GPTQ)."""

import torch
from torch import Tensor


def inverse_root(hessian: Tensor, damping: float) -> Tensor:
    """Upper U, U^T U = (H + damping * mean diag(H) * I)^-1: (K, K) float32. Zeros of diag(H): 1."""
    h = hessian.double().clone()
    diagonal = h.diagonal()
    dead = diagonal == 0
    diagonal[dead] = 1
    diagonal += damping * float(diagonal.mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    return torch.linalg.cholesky(inverse, upper=True).float()
