"""Scales, codebook and indices of a weight that fit it together, not one after the other.

``golden.kllm.quantize`` takes the largest magnitude of a channel as its scale. Here scales and
codebook are least squares, and indices answer for each other's errors. The stored format is the
same: an index per weight, an FP16 scale per output channel, an FP16 codebook in -1..1.

    minimise over c, s, i: sum over n of (w_n - s_n c[i_n]) H (w_n - s_n c[i_n])^T

H is the sum of x x^T over the inputs. ``least_squares`` takes its diagonal alone, ``feedback``
all of it. Source: KLLM, section III-A; GPTQ (Frantar et al. 2022), Algorithm 1, for the order.
"""

import dataclasses

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.hessian import inverse_root
from golden.index.kmeans import kmeans_1d
from golden.kllm.quantize import QuantizedWeight

_BLOCK = 64  # columns whose feedback on the columns after them is one matrix product
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Fit:
    """index: (N, K) int64; scale: (N,), codebook: (2**bits,) float64, values of FP16 words."""

    index: Tensor
    scale: Tensor
    codebook: Tensor

    @property
    def weight(self) -> Tensor:
        """(N, K) float64: ``s_n * c[i_nk]``."""
        return self.codebook[self.index] * self.scale[:, None]

    def quantized(self) -> QuantizedWeight:
        """Returns the weight as the hardware stores it."""
        return QuantizedWeight(
            index=self.index.t().contiguous().to(torch.uint8),
            scale=bits_from_float(self.scale, FP16),
            codebook=bits_from_float(self.codebook, FP16),
        )


def error(weight: Tensor, fit: Fit, hessian: Tensor) -> float:
    """``sum over n of e_n H e_n^T``, e the difference; of a diagonal (K,): its weighted squares."""
    e = weight.double() - fit.weight
    if hessian.dim() == 1:
        return float((e**2 * hessian.double()).sum())
    return float(((e @ hessian.double()) * e).sum())


def _words(x: Tensor) -> Tensor:
    """Rounds to the nearest FP16 values."""
    return float_from_bits(bits_from_float(x, FP16), FP16)


def _nearest(unit: Tensor, codebook: Tensor) -> Tensor:
    return torch.bucketize(unit, (codebook[:-1] + codebook[1:]) / 2)


def _unit(weight: Tensor, scale: Tensor) -> Tensor:
    """w / s, 0 where s is 0."""
    return torch.where(scale[:, None] > 0, weight / scale.clamp(min=_TINY)[:, None], 0)


def _quotient(top: Tensor, below: Tensor, before: Tensor) -> Tensor:
    """top / below, that before where ``below`` is 0."""
    return torch.where(below > 0, top / below.clamp(min=_TINY), before)


def _scale(top: Tensor, below: Tensor, before: Tensor) -> Tensor:
    """The quotient, 0 at least: a scale below 0 would turn a channel around."""
    return _quotient(top, below, before).clamp(min=0)


def _scales(weight: Tensor, centroid: Tensor, importance: Tensor, before: Tensor) -> Tensor:
    """``argmin over s of sum importance * (w - s c)**2``, FP16; that before where all c are 0."""
    top = (importance * weight * centroid).sum(1)
    return _words(_scale(top, (importance * centroid**2).sum(1), before))


def _largest(weight: Tensor) -> Tensor:
    """The largest magnitude of each channel, FP16."""
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("weight must be finite")
    found = _words(weight.abs().amax(1))
    if not bool(torch.isfinite(found).all()):
        raise ValueError("weight must be within the FP16 range, 65504")
    return found


def least_squares(
    weight: Tensor, bits: int, importance: Tensor | None = None, *, rounds: int = 8, seed: int = 0,
    antisymmetric: bool = False,
) -> Fit:  # fmt: skip
    """Codebook, scales and indices in turn, each the best for the other two.

    weight : (N, K) real; importance : (K,) or (N, K), not negative, None: 1
    antisymmetric : the codebook has ``c[i] = -c[last - i]``, in FP16 words, too
    The first codebook is the k-means of all weights over their channel's largest magnitude. The
    cost never rises but by roundings to FP16. ValueError: not finite, or beyond the FP16 range.
    """
    if not 2 <= bits <= 4:
        raise ConfigError(f"bits must be 2..4, not {bits}")
    w = weight.detach().double()
    scale = _largest(w)
    h = torch.ones_like(w) if importance is None else importance.double().expand_as(w)
    if not bool((h > 0).any()):
        h = torch.ones_like(w)
    unit = _unit(w, scale)
    own = h * scale[:, None] ** 2
    if not bool((own > 0).any()):
        own = torch.ones_like(w)
    if antisymmetric:  # as golden.kllm.quantize: the nearest centroid has the sign of its sample
        half = kmeans_1d(unit.abs(), 1 << bits - 1, own, seed=seed).centroids
        centroids = torch.cat((-half.flip(0), half))
    else:
        centroids = kmeans_1d(unit, 1 << bits, own, seed=seed).centroids
    best = _assigned(w, scale, _words(centroids.clamp(-1, 1) + 0.0))
    least = _cost(w, best, h)
    made = best
    for _ in range(rounds):
        scale = _scales(w, made.codebook[made.index], h, made.scale)
        codebook = _centroids(w, h, dataclasses.replace(made, scale=scale), antisymmetric)
        made = _assigned(w, *_normalised(scale, codebook))
        cost = _cost(w, made, h)
        if cost >= least:
            break
        best, least = made, cost
    return best


def _cost(w: Tensor, made: Fit, h: Tensor) -> float:
    return float((h * (w - made.weight) ** 2).sum())


def _assigned(w: Tensor, scale: Tensor, codebook: Tensor) -> Fit:
    return Fit(_nearest(_unit(w, scale), codebook), scale, codebook)


def _centroids(w: Tensor, h: Tensor, made: Fit, antisymmetric: bool) -> Tensor:
    """``argmin over c_j of sum over i = j of h (w - s c_j)**2``, ascending.

    antisymmetric: the sum goes over ``i = last - j`` too, with the centroid negated.
    """
    s, place, before = made.scale[:, None], made.index.flatten(), made.codebook
    top = torch.zeros_like(before).index_add_(0, place, (h * s * w).flatten())
    below = torch.zeros_like(before).index_add_(0, place, (h * s**2).expand_as(w).flatten())
    if antisymmetric:
        top, below = top - top.flip(0), below + below.flip(0)
    return _quotient(top, below, before).sort().values


def _normalised(scale: Tensor, codebook: Tensor) -> tuple[Tensor, Tensor]:
    """The same products with the codebook's largest magnitude 1, both rounded to FP16."""
    largest = codebook.abs().max().clamp(min=_TINY)
    return _words(scale * largest), _words(codebook / largest + 0.0)


def feedback(weight: Tensor, hessian: Tensor, start: Fit, *, damping: float = 0.01) -> Fit:
    """Indices anew, column by column by falling diagonal; each column answers for those before.

        e = (w_k - s c[i_k]) / U[k, k],  w_j -= e U[k, j] for all j after k,  U^T U = H^-1

    hessian : (K, K), sum of x x^T, any factor. Scales and codebook are those of ``start``.
    """
    order = hessian.diagonal().argsort(descending=True, stable=True)
    u = inverse_root(hessian[order][:, order], damping).double()
    w = weight.double()[:, order].t().contiguous()
    scale, codebook = start.scale, start.codebook
    middle = (codebook[:-1] + codebook[1:]) / 2
    safe = scale.clamp(min=_TINY)
    index = torch.empty_like(w, dtype=torch.int64)
    for first in range(0, len(w), _BLOCK):
        stop = min(first + _BLOCK, len(w))
        errors = torch.empty(stop - first, w.shape[1], dtype=w.dtype, device=w.device)
        for k in range(first, stop):
            index[k] = torch.bucketize(torch.where(scale > 0, w[k] / safe, 0), middle)
            errors[k - first] = (w[k] - codebook[index[k]] * scale) / u[k, k]
            if k + 1 < stop:
                w[k + 1 : stop].addr_(u[k, k + 1 : stop], errors[k - first], alpha=-1)
        w[stop:] -= u[first:stop, stop:].t() @ errors
    back = order.argsort()
    return dataclasses.replace(start, index=index[back].t().contiguous())


def refine(weight: Tensor, hessian: Tensor, start: Fit, *, rounds: int = 3) -> Fit:
    """Scales for the indices, then each index for all others, ``rounds`` times.

        s_n = (w_n H c_n) / (c_n H c_n),   w*_k = w_k + sum over j != k of H_jk e_j / H_kk

    An index becomes the nearest to w*_k, so the error in H never rises but by roundings of scales.
    A round that rises is left out. hessian : as for ``feedback``.
    """
    w, h = weight.double(), hessian.double()
    best, least = start, error(w, start, h)
    made = start
    for _ in range(rounds):
        centroid = made.codebook[made.index]
        product = centroid @ h
        scale = _scale((product * w).sum(1), (product * centroid).sum(1), made.scale)
        made = _descended(w, h, dataclasses.replace(made, scale=_words(scale)))
        cost = error(w, made, h)
        if cost >= least:
            break
        best, least = made, cost
    return best


def _descended(w: Tensor, h: Tensor, made: Fit) -> Fit:
    """One pass over the columns by falling diagonal."""
    index, scale, codebook = made.index.t().clone(), made.scale, made.codebook
    safe = scale.clamp(min=_TINY)
    middle = (codebook[:-1] + codebook[1:]) / 2
    e = (w - made.weight).t().contiguous()  # (K, N)
    diagonal = h.diagonal()
    order = diagonal.argsort(descending=True, stable=True)
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        gradient = h[block] @ e  # of the block's columns: (block, N)
        within = h[block][:, block]
        changed = torch.zeros_like(gradient)
        for number, k in enumerate(block.tolist()):
            if float(diagonal[k]) <= 0:
                continue
            wanted = w[:, k] - e[k] + gradient[number] / diagonal[k]
            now = torch.bucketize(torch.where(scale > 0, wanted / safe, 0), middle)
            new = w[:, k] - codebook[now] * scale
            changed[number] = new - e[k]
            gradient += within[:, number : number + 1] * changed[number]
            index[k], e[k] = now, new
    return dataclasses.replace(made, index=index.t().contiguous())
