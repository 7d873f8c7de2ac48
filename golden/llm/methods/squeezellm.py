"""Weights by a codebook per output channel, after SqueezeLLM."""

import dataclasses
import functools
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, real
from golden.index.kmeans import kmeans_rows
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State

_SENSITIVE = 1 / 9  # of the sparse weights: 0.05 % of 0.45 %
_ROWS = 256  # output channels whose codebooks are sought together


def codebooks(weight: Tensor, fisher: Tensor | None, bits: int) -> Tensor:
    """(N, 2**bits) FP16 ascending: c[n] = argmin sum_k F[n, k] (w[n, k] - c[n, nearest])**2.

    weight, fisher: (N, K), fisher >= 0; None: 1. Among the seeds is the grid of ``rtn-wN``, so the
    cost is never above its cost (before centroids are rounded).
    """
    top = (1 << (bits - 1)) - 1
    levels = torch.arange(-top - 1, top + 1, device=weight.device)
    found = []
    for begin in range(0, len(weight), _ROWS):
        rows = slice(begin, begin + _ROWS)
        grid = weight[rows].abs().amax(1, keepdim=True).double() / top * levels
        own = None if fisher is None else fisher[rows]
        found.append(kmeans_rows(weight[rows], 1 << bits, own, start=grid)[0])
    return torch.cat(found).half()


def nearest(weight: Tensor, codebook: Tensor) -> Tensor:
    """(N, K) uint8: index of each weight's nearest centroid in the codebook of its row."""
    c = codebook.float()
    return torch.searchsorted((c[:, 1:] + c[:, :-1]) / 2, weight.contiguous()).to(torch.uint8)


def sparse_places(weight: Tensor, fisher: Tensor, share: float) -> Tensor:
    """Ascending flat positions of round(share * N * K) weights of a layer.

    A ninth are the weights of largest Fisher weight, the others the largest remaining magnitudes.
    """
    count = round(share * weight.numel())
    sensitive = round(count * _SENSITIVE)
    first = fisher.flatten().topk(sensitive).indices
    magnitude = weight.abs().flatten()
    magnitude[first] = -1
    return torch.cat([first, magnitude.topk(count - sensitive).indices]).sort().values


@dataclasses.dataclass(frozen=True, kw_only=True)
class SqueezeLlmLike(Method):
    """``squeezellm-like-wNa16``: codebook of 2**N per output channel, activations untouched.

    After SqueezeLLM (Kim et al. 2023, sections 4.1 and 4.2): k-means of the weights of an output
    channel, weighted by the Fisher information. This is here the squared gradient of a calibration
    window's summed next-token loss, summed over the windows. Centroids are in FP16.

    sparse: share of a layer's weights that are kept in FP16, 0.0045 in the paper's dense-and-sparse
    variant. Fisher weight selects 1 / 9 of them, magnitude the others. They take no part in the
    k-means. Each takes 32 bits (value, column), and each row 32 more (pointer).
    """

    pattern: ClassVar[str] = r"squeezellm-like-w(?P<weight_bits>\d{1,3})a16"
    spellings: ClassVar[tuple[str, ...]] = ("squeezellm-like-w4a16",)
    calibrated: ClassVar[bool] = True

    weight_bits: int = bounded(4, 2, 8)
    sparse: float = real(0.0, 0.0, 0.5)

    @property
    def replaces_weights(self) -> bool:
        return True

    def calibrate(self, data: CalibrationData) -> State:
        """{name}.code (N, K) uint8, .codebook (N, 2**bits) FP16; .place, .value of sparse ones."""
        fisher = data.weight_fisher()
        state: State = {}
        for name, linear in data.track(list(data.linears.items()), "codebooks"):
            make = functools.partial(self._layer, name, linear.weight.detach(), fisher[name])
            state |= data.steps.once(f"squeezellm-{self.weight_bits}-{self.sparse}-{name}", make)
        return state

    def _layer(self, name: str, weight: Tensor, fisher: Tensor) -> State:
        made: State = {}
        fisher = fisher.to(weight.device)
        if self.sparse > 0:
            place = sparse_places(weight, fisher, self.sparse)
            made[f"{name}.place"] = place.to(torch.int32).cpu()
            made[f"{name}.value"] = weight.flatten()[place].half().cpu()
            fisher = fisher.flatten().index_fill(0, place, 0).reshape(weight.shape)
        codebook = codebooks(weight, fisher, self.weight_bits)
        made[f"{name}.codebook"] = codebook.cpu()
        made[f"{name}.code"] = nearest(weight, codebook).cpu()
        return made

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            weight = state[f"{name}.codebook"].float().gather(1, state[f"{name}.code"].long())
            bits = self.weight_bits + 16 * (1 << self.weight_bits) / k
            if self.sparse > 0:
                place = state[f"{name}.place"].long()
                weight.view(-1)[place] = state[f"{name}.value"].float()
                bits += 32 * len(place) / (n * k) + 32 / k
            site.weight(name, weight)
            site.bits.add("weights", name, n * k, bits)
