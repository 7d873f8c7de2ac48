"""Weights of 4 bits in 8, inputs of 8 bits, K and V of 4, after QoQ of QServe."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, flag, real
from golden.kllm.layer.weights import rotated_elements
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.fake.grids import uniform_grid
from golden.llm.eval.method import Method, Site, State
from golden.llm.eval.walk import LayerWalk
from golden.llm.folding import fold, for_columns, for_rows, writers
from golden.llm.methods.awq import (
    RATIOS,
    Halves,
    Rounding,
    best_clips,
    by_layer,
    in_groups,
    rtn_asymmetric,
)
from golden.llm.methods.gptq import hessians_of, ragged
from golden.llm.methods.quarot import random_state, rotate
from golden.llm.methods.rtn import rtn_symmetric
from golden.llm.methods.smoothquant import migration
from golden.llm.patch import K, Patch, V
from golden.llm.structure import block_of

PROTECTED = 119  # largest INT8 code, so that the second level cannot leave INT8
OFF = 16  # bits of what stays as it is
_BITS = 4  # of a weight's code
_STEP, _ZERO = 8, 4  # bits of a group's integer step and zero point
_SCALE = 16  # bits of an FP16 word
_INDEX = 16  # bits of a channel's index


def integer_groups(code: Tensor, clip: float | Tensor = 1.0) -> Tensor:
    """(clamp(rne(c / t) + z, 0, 15) - z) * t of INT8 codes c on the last axis, all integers, with

        t = max(ceil(clip * (max(c, 0) - min(c, 0)) / 15), 1),    z = rne(-clip * min(c, 0) / t)

    clip: at most 1, of all rows or (..., 1) of each. z is within 0..15. Codes within -119..119 give
    -127..127. For t is at most 16, and a value lies at most t / 2 outside the range of the codes
    and 0. Rounded upwards, t covers the range that clip leaves.
    """
    last = (1 << _BITS) - 1
    low = code.amin(-1, keepdim=True).clamp(max=0) * clip
    high = code.amax(-1, keepdim=True).clamp(min=0) * clip
    step = ((high - low) / last).ceil_().clamp_(min=1)
    zero = (-low / step).round_()
    return torch.div(code, step).round_().add_(zero).clamp_(0, last).sub_(zero).mul_(step)


def eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(codes rne(w / s) within -119..119, s = FP16(max |w| / 119) (N, 1)) of (N, K) weights."""
    scale = (weight.abs().amax(1, keepdim=True) / PROTECTED).half().to(weight.dtype)
    safe = scale.clamp(min=torch.finfo(weight.dtype).tiny)
    return torch.div(weight, safe).round_().clamp_(-PROTECTED, PROTECTED), scale


def attention_factors(keys: Tensor, alpha: float, rotary: int) -> Tensor:
    """(heads, size) lambda = max(|k_i|, |k_j|)**alpha of the pair i, j that RoPE turns.

    keys: (heads, size) largest magnitudes after RoPE; the pairs are i and i + rotary / 2 of the
    first ``rotary`` elements. Other elements have their own. 1 where the keys are 0.
    """
    turned = keys[:, :rotary].unflatten(1, (2, -1)).amax(1).repeat(1, 2)
    largest = torch.cat((turned, keys[:, rotary:]), 1)
    return torch.where(largest > 0, largest**alpha, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qoq(Method):
    """``qoq``: W4A8KV4 with weights of 4 bits whose steps are integers of an 8-bit weight.

    After QServe (Lin et al. 2024, sections 4.1 to 4.3):

    - weights: INT8 codes within -119..119 with an FP16 scale per output channel. In groups of
      ``group`` input channels each code becomes ``(q - z) t``, q and z of 4 bits, t of 8
      (``integer_groups``). group=0: asymmetric codes of 4 bits per output channel, FP16 scale
    - inputs: symmetric INT8, an FP16 scale per token
    - K and V: asymmetric codes of 4 bits, FP16 minimum and step for every token and head
    - rotate: R of ``quarot`` in the residual stream alone, so that inputs of q, k, v, gate and up
      are rotated
    - smooth: s = max |x|**alpha / max |w|**(1 - alpha) of o's and down's inputs, with 1 / s in the
      rows of v and up. gpt-oss's down has none. Query heads that share a head of V share s
    - attention: q lambda and k / lambda (SmoothAttention), lambda = max |k|**attention_alpha of a
      head's element and of the other one that RoPE turns with it
    - reorder: a matrix's input channels by falling max |x|, before they are cut into groups
    - clip: both ends of a group's range times 1, 0.95 to 0.55, whichever changes the group's part
      of the output least. q and k have one factor per layer, by what attention gives

    The paper folds lambda and the order into the matrices before. Here lambda is a product after
    RoPE, which commutes with it. The order counts 16 bits per channel and matrix. The paper's s of
    o and down depends on a search of alpha, which is near 0 there; here alpha is given. All inputs
    are those of the unquantized model. 16 bits leave weights, inputs, or K and V as they are.
    """

    relative_time: ClassVar[float] = 1.3
    pattern: ClassVar[str] = "qoq"
    spellings: ClassVar[tuple[str, ...]] = ("qoq",)
    calibrated: ClassVar[bool] = True
    caches: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = choice(_BITS, (_BITS, OFF))
    activation_bits: int = choice(8, (8, OFF))
    kv_bits: int = choice(4, (4, 8, OFF))
    group: int = bounded(128, 0, 1 << 20)
    alpha: float = real(0.05, 0.0, 1.0)
    attention_alpha: float = real(0.5, 0.0, 1.0)
    rotate: bool = flag(True)
    smooth: bool = flag(True)
    attention: bool = flag(True)
    reorder: bool = flag(True)
    clip: bool = flag(True)

    def __post_init__(self) -> None:
        if not self.smooth and self.alpha != type(self).alpha:
            self._refuse("alpha", f"{type(self).alpha} with smooth=false, which has none")
        if not self.attention and self.attention_alpha != type(self).attention_alpha:
            value = type(self).attention_alpha
            self._refuse("attention_alpha", f"{value} with attention=false, which has none")

    # ---- offline

    def calibration_fields(self) -> dict[str, object]:
        """All but what only the run depends on."""
        online = ("activation_bits", "kv_bits")
        return {name: value for name, value in self.describe().items() if name not in online}

    def calibrate(self, data: CalibrationData) -> State:
        """Makes the tensors of the run.

        - signs, small.hidden: as ``quarot``
        - I.keys: (kv_heads, size) float32, lambda of layer I
        - NAME.rows: as ``golden.llm.folding.fold``
        - NAME.order: (K,) int32
        - NAME.clip: (N, G) float32
        """
        state: State = random_state(data, ()) if self.rotate else {}
        with Patch(data.model) as patch, torch.no_grad():
            device = data.windows[0].device
            if self.rotate:
                rotate(patch, {name: each.to(device) for name, each in state.items()}, inputs=False)
            maxima = data.accumulate(
                f"qoq-maximum-{self.rotate}", lambda x: x.abs().amax(0), torch.maximum
            )
            if self.attention:
                state |= self._factors(data, patch)
            if self.smooth:
                state |= self._rows(patch, maxima)
                fold(patch, {name: each.to(device) for name, each in state.items()})
            if self.weight_bits != OFF:
                state |= self._orders(patch, state, maxima)
                if self.clip:
                    state |= self._clips(data, patch, state)
        return state

    def _factors(self, data: CalibrationData, patch: Patch) -> State:
        def make() -> State:
            largest: State = {}
            for ids in data.track(data.windows, "keys"):
                for i, (k, _) in enumerate(data.kv(ids)):
                    own, name = k.abs().amax(0), str(i)
                    largest[name] = torch.maximum(largest.get(name, own), own)
            return largest

        keys = data.steps.once("qoq-keys", make)
        state: State = {}
        for i, attention in enumerate(patch.attentions):
            size = int(attention.head_dim)  # type: ignore[arg-type]
            turned = rotated_elements(attention.config, size)
            state[f"{i}.keys"] = attention_factors(
                keys[str(i)].float().reshape(-1, size), self.attention_alpha, turned
            )
        return state

    def _rows(self, patch: Patch, maxima: State) -> State:
        state: State = {}
        for prefix, layer in zip(patch.layer_names, patch.layers, strict=True):
            attention: Any = layer.self_attn
            for after, before in writers(prefix, block_of(layer)).items():
                width = patch.linears[before].out_features
                weight = patch.linears[after].weight.detach().abs().amax(0).cpu()
                state[f"{after}.rows"] = migration(
                    for_rows(attention, maxima[after].float(), width).amax(1),
                    [for_rows(attention, weight, width).amax(1)[None]],
                    self.alpha,
                )
        return state

    def _orders(self, patch: Patch, state: State, maxima: State) -> State:
        """{NAME.order} by falling largest magnitude of what the scaled model gives."""
        found: State = {}
        for prefix, layer in zip(patch.layer_names, patch.layers, strict=True):
            for place in block_of(layer).linears.values():
                name = f"{prefix}.{place}"
                largest = maxima[name].float()
                if (rows := state.get(f"{name}.rows")) is not None:
                    largest = largest / for_columns(layer.self_attn, rows, len(largest))
                if self._is_ordered(len(largest)):
                    order = largest.argsort(descending=True, stable=True)
                    found[f"{name}.order"] = order.to(torch.int32)
        return found

    def _is_ordered(self, width: int) -> bool:
        return self.reorder and len(ragged(width, self.group)) > 1

    def _clips(self, data: CalibrationData, patch: Patch, state: State) -> State:
        return by_layer(
            "QoQ", self, data, patch, lambda walk, i: self._clips_of_layer(patch, walk, i, state)
        )

    def _clips_of_layer(self, patch: Patch, walk: LayerWalk, i: int, state: State) -> State:
        prefix, block = patch.layer_names[i], block_of(patch.layers[i])
        linears = patch.linears_of(prefix)
        hessians = hessians_of(linears, lambda: walk.run(i, walk.hidden))
        together = [f"{prefix}.{block.linears[name]}" for name in "qk"]
        made: State = {}
        for name, linear in linears.items():
            weight, hessian = linear.weight.detach(), hessians[name]
            sizes = ragged(weight.shape[1], self.group)
            if name in together:
                made[f"{name}.clip"] = torch.ones(len(weight), len(sizes), device=weight.device)
                continue
            if (order := state.get(f"{name}.order")) is not None:
                index = order.long().to(weight.device)
                weight, hessian = weight[:, index], hessian[index][:, index]
            base, _, rounded = self._levels(weight)
            made[f"{name}.clip"] = best_clips(base, hessian, sizes, rounded)
        halves = Halves(walk, i)
        wanted = halves.run("attention")
        losses = []
        for ratio in RATIOS:
            changed = {
                name: self._quantized(
                    linears[name].weight.detach(), state.get(f"{name}.order"),
                    made[f"{name}.clip"] * ratio,
                )
                for name in together
            }  # fmt: skip
            losses.append(halves.loss("attention", changed, wanted))
        for name in together:
            made[f"{name}.clip"] *= RATIOS[losses.index(min(losses))]
        return {name: value.cpu() for name, value in made.items()}

    # ---- the formats

    def _levels(self, weight: Tensor) -> tuple[Tensor, Tensor | float, Rounding]:
        """(what the groups round, the scale of its rows, how a group rounds)"""
        if self.group == 0:
            return weight, 1.0, lambda x, clip: rtn_asymmetric(x, _BITS, clip)
        return *eight_bits(weight), integer_groups

    def _quantized(self, weight: Tensor, order: Tensor | None, clip: Tensor | None) -> Tensor:
        """The weight (N, K) that the codes give, columns as in ``weight``."""
        index = torch.arange(weight.shape[1], device=weight.device)
        if order is not None:
            index = order.long().to(weight.device)
        base, scale, rounded = self._levels(weight[:, index])
        sizes: Sequence[int] = ragged(weight.shape[1], self.group)
        return (in_groups(base, sizes, clip, rounded) * scale)[:, index.argsort()]

    def _stored_bits(self, n: int, k: int) -> float:
        """Bits per weight of an (n, k) matrix."""
        groups = len(ragged(k, self.group))
        if self.group == 0:
            return _BITS + (_SCALE + _ZERO) / k
        order = _INDEX / n if self._is_ordered(k) else 0.0
        return _BITS + groups * (_STEP + _ZERO) / k + _SCALE / k + order

    # ---- the run

    def install(self, site: Site, state: State) -> None:
        if self.rotate:
            rotate(site, state, inputs=False)
        fold(site, state)

        def activation(x: Tensor) -> Tensor:
            return rtn_symmetric(x, self.activation_bits)

        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            if self.weight_bits != OFF:
                order, clip = (state.get(f"{name}.{part}") for part in ("order", "clip"))
                site.weight(name, self._quantized(linear.weight.detach(), order, clip))
                site.bits.add("weights", name, n * k, self._stored_bits(n, k))
            if self.activation_bits != OFF:
                site.input(linear, activation)
                site.bits.add("activations", name, k, self.activation_bits + _SCALE / k)
        self._caches(site, state)

    def _caches(self, site: Site, state: State) -> None:
        sizes = [int(each.head_dim) for each in site.attentions]  # type: ignore[arg-type]
        if self.attention:

            def widen(layer: int, q: Tensor) -> Tensor:
                factors = state[f"{layer}.keys"]
                return q * factors.repeat_interleave(q.shape[1] // len(factors), 0)[:, None]

            site.query(widen)

        def tap(layer: int, kv: int, x: Tensor) -> Tensor:
            heads = x.unflatten(-1, (-1, sizes[layer]))
            if self.attention and kv == K:
                heads = heads / state[f"{layer}.keys"]
            if self.kv_bits != OFF:
                heads = uniform_grid(heads, self.kv_bits, -1)
            return heads.flatten(-2)

        site.kv(tap)
        if self.kv_bits != OFF:
            for layer, size in enumerate(sizes):
                for kv in (K, V):
                    site.bits.add("kv", f"{layer}.{kv}", 1, self.kv_bits + 2 * _SCALE / size)
