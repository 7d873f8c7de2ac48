"""Weights in groups, channels of large inputs scaled up before the rounding, after AWQ."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from golden.config import bounded, flag, real
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.eval.walk import LayerWalk, Tap
from golden.llm.folding import fold, for_columns, for_rows, readers, writers
from golden.llm.methods.gptq import hessians_of, ragged
from golden.llm.patch import Patch
from golden.llm.structure import READERS, block_of

OFF = 16  # bits of weights that stay as they are
_SCALE = 16  # bits of an FP16 word
_ALPHAS = tuple(i / 20 for i in range(20))
# Shares of a group's range; the first one clips nothing.
RATIOS = tuple(1 - i / 20 for i in range(10))

Rounding = Callable[[Tensor, float | Tensor], Tensor]


def rtn_asymmetric(x: Tensor, bits: int, clip: float | Tensor = 1.0) -> Tensor:
    """s * (clamp(rne(x / s) + z, 0, m) - z) on the last axis, with m = 2**bits - 1 and

        s = FP16(clip * (max(x, 0) - min(x, 0)) / m),    z = clamp(rne(-clip * min(x, 0) / s), 0, m)

    clip: 1 for all rows, or (..., 1) of each. In the type of x; a row of zeros stays.
    """
    last = (1 << bits) - 1
    low = x.amin(-1, keepdim=True).clamp(max=0) * clip
    high = x.amax(-1, keepdim=True).clamp(min=0) * clip
    scale = ((high - low) / last).half().to(x.dtype)
    safe = scale.clamp(min=torch.finfo(x.dtype).tiny)
    zero = (-low / safe).round_().clamp_(0, last)
    return torch.div(x, safe).round_().add_(zero).clamp_(0, last).sub_(zero).mul_(scale)


def in_groups(x: Tensor, sizes: Sequence[int], clip: Tensor | None, rounded: Rounding) -> Tensor:
    """rounded(group of columns, its clip) of each group; clip: (N, G), or None for 1."""
    parts = x.split(list(sizes), -1)
    if clip is None:
        return torch.cat([rounded(part, 1.0) for part in parts], -1)
    return torch.cat([rounded(part, clip[:, [g]]) for g, part in enumerate(parts)], -1)


def output_loss(weight: Tensor, changed: Tensor, hessian: Tensor) -> Tensor:
    """(N, 1) (q - w) H (q - w)^T of each row; weight, changed: (N, K); hessian: (K, K)"""
    error = changed - weight
    return (error @ hessian).mul_(error).sum(-1, keepdim=True)


def best_clips(x: Tensor, hessian: Tensor, sizes: Sequence[int], rounded: Rounding) -> Tensor:
    """(N, G): of RATIOS what loses least of each group by ``output_loss``, the first if alike.

    hessian: (K, K), sum of x x^T. Products of different groups are left out, as in AWQ's search.
    """
    found, begin = [], 0
    for size in sizes:
        own = slice(begin, begin + size)
        part, block = x[:, own], hessian[own, own]
        best = torch.ones_like(part[:, :1])
        least = output_loss(part, rounded(part, 1.0), block)
        for ratio in RATIOS[1:]:
            loss = output_loss(part, rounded(part, ratio), block)
            better = loss < least
            least = torch.where(better, loss, least)
            best.masked_fill_(better, ratio)
        found.append(best)
        begin += size
    return torch.cat(found, 1)


def importance_scales(magnitude: Tensor, alpha: float) -> Tensor:
    """s = m**alpha / sqrt(max m**alpha * min m**alpha) over channels with m > 0, 1 for the others.

    magnitude: (K,) mean |x| of the channels, or any multiple of it.
    """
    alive = magnitude > 0
    if not bool(alive.any()):
        return torch.ones_like(magnitude)
    power = magnitude.double() ** alpha
    middle = (power[alive].max() * power[alive].min()).sqrt()
    return torch.where(alive, power / middle, 1.0).float()


class Halves:
    """Runs attention or network of one decoder layer on its inputs in the unchanged model."""

    def __init__(self, walk: LayerWalk, i: int) -> None:
        self._walk, self._i = walk, i
        self._post = functools.cache(lambda: walk.after_attention(i, walk.hidden))

    def run(self, place: str) -> list[Tensor]:
        """Returns what "attention" or "network" gives with the present weights, by window."""
        layer: Any = self._walk.layers[self._i]
        module = layer.self_attn
        if place == "network":
            module = layer.get_submodule(block_of(layer).network)

        def put(patch: Patch, tap: Tap) -> None:
            patch.output(module, lambda y: tap(y[0] if isinstance(y, tuple) else y))

        if place == "attention":
            return self._walk.seen(self._i, self._walk.hidden, put)
        return self._walk.seen_after_attention(self._i, self._post(), put)

    def loss(self, place: str, weights: Mapping[str, Tensor], wanted: list[Tensor]) -> float:
        """The sum of squares by which other weights change what a place gives."""
        with Patch(self._walk.model) as patch:
            for name, weight in weights.items():
                patch.weight(name, weight)
            found = self.run(place)
        pairs = zip(found, wanted, strict=True)
        return sum(float((a - b).double().square().sum()) for a, b in pairs)


def by_layer(
    label: str,
    method: Method,
    data: CalibrationData,
    patch: Patch,
    make: Callable[[LayerWalk, int], State],
) -> State:
    """All states ``make(walk, i)``; the walk has the inputs of layer i, unchanged. Resumable."""
    fields = "-".join(map(str, method.calibration_fields().values()))
    state: State = {}
    walk = LayerWalk(patch.model, data.windows)
    for i, prefix in data.track(list(enumerate(patch.layer_names)), label):
        key = f"{label.lower()}-{fields}-{prefix}"
        state |= data.steps.once(key, functools.partial(make, walk, i))
        walk.hidden = walk.run(i, walk.hidden)
    return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Awq(Method):
    """``awq4``, ``awq3``: weights in groups, input channels scaled by their mean magnitude first.

    After AWQ (Lin et al. 2023, section 3.2). A layer has ``Q(W s) (x / s)``, and its s is

        argmin over alpha of |f(Q(W s) / s) - f(W)|^2,    s = m**alpha / sqrt(max * min of that)

    alpha is 0, 0.05 .. 0.95 and m is a channel's mean |x| on the calibration text. f is what
    attention gives for q, k and v together, and what the network gives for gate and up of all
    experts. For o and for down it is the layer's own output. 1 / s goes into the norm before, or
    into the rows of v and up, so it costs nothing. Query heads that share a head of V share s of o.
    Nothing is scaled without such a norm, and neither is gpt-oss's down.

    Q: asymmetric, from min(w, 0) to max(w, 0) of a group; scale in FP16, zero point of N bits. The
    last group of a row is ragged.

    group: input channels of a group; 0: a row
    alpha: of all layers; -1: the search above
    clip: both ends of a group's range are multiplied by 1, 0.95 .. 0.55, whichever changes the
        group's part of the output least. q and k are left out, as in the paper's code

    All inputs are those of the unchanged model. Weights of 16 bits are not rounded. So a search
    leaves them as they are, and a given alpha scales them.
    """

    pattern: ClassVar[str] = r"awq(?P<weight_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("awq4", "awq3")
    calibrated: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = bounded(4, 2, OFF)
    group: int = bounded(128, 0, 1 << 20)
    alpha: float = real(-1.0, -1.0, 1.0)
    clip: bool = flag(True)

    def __post_init__(self) -> None:
        if self.weight_bits != OFF:
            self._check_range("weight_bits", 2, 8)
        if self.alpha < 0 and self.alpha != -1:
            self._refuse("alpha", "0..1, or -1 for a search")

    def calibrate(self, data: CalibrationData) -> State:
        """Makes what ``golden.llm.folding.fold`` reads, and NAME.clip (N, G) of all but q and k.

        All are float32.
        """
        total = data.accumulate("magnitude", lambda x: x.abs().sum(0))
        with Patch(data.model) as patch, torch.no_grad():
            return by_layer(
                "AWQ", self, data, patch, lambda walk, i: self._layer(patch, walk, i, total)
            )

    def _layer(self, patch: Patch, walk: LayerWalk, i: int, total: State) -> State:
        """The state of one decoder layer; total: sums of |x| of all linear layers' inputs."""
        prefix, layer = patch.layer_names[i], patch.layers[i]
        block = block_of(layer)
        linears = patch.linears_of(prefix)
        weights = {name: linear.weight.detach() for name, linear in linears.items()}
        hessians = hessians_of(linears, lambda: walk.run(i, walk.hidden))
        total = {name: total[name].to(weight.device) for name, weight in weights.items()}
        halves = Halves(walk, i)
        made: State = {}
        scales: State = {}  # of the columns of each matrix that has some
        for place in READERS:
            if place in block.before:
                names = readers(prefix, block, place)
                magnitude = torch.stack([total[name] for name in names]).sum(0)
                loss = self._loss_of_half(halves, place, {name: weights[name] for name in names})
                made[f"{prefix}.{place}"] = s = self._searched(magnitude, loss)
                scales |= dict.fromkeys(names, s)
        for after, before in writers(prefix, block).items():
            weight = weights[after]
            widen = functools.partial(for_columns, layer.self_attn, width=weight.shape[1])
            magnitude = for_rows(layer.self_attn, total[after], len(weights[before])).mean(1)
            loss = self._loss_of_output(weight, hessians[after], widen)
            made[f"{after}.rows"] = s = self._searched(magnitude, loss)
            scales[after] = widen(s)
        if self.clip and self.weight_bits != OFF:
            unclipped = {f"{prefix}.{block.linears[name]}" for name in "qk"}
            for name in sorted(weights.keys() - unclipped):
                s = scales.get(name, torch.ones_like(weights[name][0]))
                made[f"{name}.clip"] = best_clips(
                    weights[name] * s,
                    hessians[name] / (s[:, None] * s),
                    ragged(len(s), self.group),
                    self._rounded,
                )
        return {name: value.cpu() for name, value in made.items()}

    def _searched(self, magnitude: Tensor, loss: Callable[[Tensor], float]) -> Tensor:
        """s of least loss, the one of the least alpha if alike; or of the alpha that is given."""
        alphas: tuple[float, ...] = (self.alpha,)
        if self.alpha < 0:
            alphas = _ALPHAS[:1] if self.weight_bits == OFF else _ALPHAS
        found = [importance_scales(magnitude, alpha) for alpha in alphas]
        if len(found) == 1:
            return found[0]
        losses = [loss(s) for s in found]
        return found[losses.index(min(losses))]

    def _loss_of_half(
        self, halves: Halves, place: str, weights: Mapping[str, Tensor]
    ) -> Callable[[Tensor], float]:
        wanted = halves.run(place)
        return lambda s: halves.loss(
            place, {name: self._changed(weight, s) for name, weight in weights.items()}, wanted
        )

    def _loss_of_output(
        self, weight: Tensor, hessian: Tensor, widen: Callable[[Tensor], Tensor]
    ) -> Callable[[Tensor], float]:
        return lambda s: float(output_loss(weight, self._changed(weight, widen(s)), hessian).sum())

    def _changed(self, weight: Tensor, s: Tensor) -> Tensor:
        """Q(W s) / s without clipping."""
        sizes = ragged(weight.shape[1], self.group)
        return in_groups(weight * s, sizes, None, self._rounded).div_(s)

    def _rounded(self, x: Tensor, clip: float | Tensor) -> Tensor:
        return rtn_asymmetric(x, self.weight_bits, clip)

    def install(self, site: Site, state: State) -> None:
        fold(site, state)
        for name, linear in site.linears.items() if self.weight_bits != OFF else ():
            n, k = linear.weight.shape
            sizes = ragged(k, self.group)
            clip = state.get(f"{name}.clip")
            site.weight(name, in_groups(linear.weight.detach(), sizes, clip, self._rounded))
            bits = self.weight_bits + len(sizes) * (_SCALE + self.weight_bits) / k
            site.bits.add("weights", name, n * k, bits)
