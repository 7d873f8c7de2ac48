"""Weights column by column with error feedback, after GPTQ (Frantar et al. 2022, Algorithm 1)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from golden.config import bounded, flag, real
from golden.index.hessian import inverse_root
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.eval.walk import LayerWalk
from golden.llm.methods.rtn import best_clip
from golden.llm.patch import Patch

_BLOCK = 128  # columns whose feedback on the columns after them is one matrix product
_SCALE = 16  # bits of an FP16 word
_INDEX = 16  # bits of a column's index


def ragged(width: int, group: int) -> list[int]:
    """Sizes of groups of ``group`` columns, the last one the remainder; one group for 0."""
    if group == 0 or group >= width:
        return [width]
    return [group] * (width // group) + ([width % group] if width % group else [])


@dataclasses.dataclass(frozen=True)
class Columns:
    """A quantized weight: w[n, k] = scale[n, g] * (code[n, k] - zero[n, g]), g the group of k.

    code: (N, K) uint8
    scale: (N, G) FP16
    zero: (N, G) uint8
    sizes: columns of each group
    order: (K,) the column of the weight that each stored one is, or None
    """

    code: Tensor
    scale: Tensor
    zero: Tensor
    sizes: list[int]
    order: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """(N, K) float32, columns in the order of the weight."""
        repeats = torch.tensor(self.sizes, device=self.code.device)
        scale = self.scale.float().repeat_interleave(repeats, dim=1)
        zero = self.zero.float().repeat_interleave(repeats, dim=1)
        stored = (self.code.float() - zero).mul_(scale)
        return stored if self.order is None else stored[:, self.order.argsort()]

    @property
    def parts(self) -> State:
        """Returns the tensors that ``restored`` reads, by the end of its name."""
        found = {"code": self.code, "scale": self.scale, "zero": self.zero}
        found["sizes"] = torch.tensor(self.sizes)
        return found if self.order is None else {**found, "order": self.order}


def _grid(
    columns: Tensor, bits: int, symmetric: bool, clip: float | None
) -> tuple[Tensor, Tensor, int, int]:
    """(scale, zero, smallest code, largest code) of (k, N) columns; scale and zero (N,) float32.

    Asymmetric: from min(w, 0) to max(w, 0), GPTQ's default. Symmetric: as ``rtn_symmetric`` with
    ``clip`` (None: ``best_clip``), codes shifted by 2**(bits - 1).
    """
    last = (1 << bits) - 1
    if symmetric:
        top = (1 << (bits - 1)) - 1
        ratio = best_clip(columns.t(), bits)[:, 0] if clip is None else clip
        scale = (columns.abs().amax(0) * ratio / top).half().float()
        return scale, torch.full_like(scale, top + 1), 1, last
    low, high = columns.amin(0).clamp(max=0), columns.amax(0).clamp(min=0)
    scale = ((high - low) / last).half().float()
    zero = (-low / scale.clamp(min=torch.finfo(scale.dtype).tiny)).round().clamp(0, last)
    return scale, zero, 0, last


def gptq(
    weight: Tensor,
    hessian: Tensor,
    sizes: Sequence[int],
    bits: Sequence[int],
    *,
    damping: float = 0.01,
    symmetric: bool = False,
    clip: float | Sequence[float] | None = 1.0,
) -> Columns:
    """argmin_Q tr((W - Q) H (W - Q)^T), greedily over columns: for k = 0 .. K - 1

        e = (w_k - q_k) / U[k, k],   w_j -= e * U[k, j] for all j > k,   U^T U = H^-1

    weight: (N, K)
    hessian: (K, K), sum of x x^T, any factor
    sizes, bits: of the groups of columns in order
    clip: of all groups or of each, see ``_grid``

    A group takes its grid from its columns as they are when it begins. With a diagonal H this is
    round to nearest. A column whose input is always 0 becomes 0.
    """
    rows, width = weight.shape
    assert sum(sizes) == width
    # Columns are read one by one: transposed, each is contiguous.
    w = weight.detach().float().t().contiguous()
    w[hessian.diagonal() == 0] = 0
    u = inverse_root(hessian, damping)
    code = torch.empty_like(w, dtype=torch.uint8)
    scales, zeros, begins = [], [], {}
    begin = 0
    clips = clip if isinstance(clip, Sequence) else [clip] * len(sizes)
    for size, group_bits, group_clip in zip(sizes, bits, clips, strict=True):
        begins[begin] = (begin + size, group_bits, group_clip)
        begin += size
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        errors = w.new_zeros(stop - start, rows)
        for k in range(start, stop):
            if k in begins:
                end, group_bits, group_clip = begins[k]
                # Feedback of the block on the columns after it, where the group reaches that far.
                ahead = w[k:end].clone()
                if end > stop:
                    ahead[stop - k :] -= u[start:k, stop:end].t() @ errors[: k - start]
                scale, zero, least, most = _grid(ahead, group_bits, symmetric, group_clip)
                safe = scale.clamp(min=torch.finfo(scale.dtype).tiny)
                scales.append(scale)
                zeros.append(zero)
            q = torch.div(w[k], safe).round_().add_(zero).clamp_(least, most)
            code[k] = q
            error = q.sub_(zero).mul_(scale).neg_().add_(w[k]).div_(u[k, k])
            errors[k - start] = error
            if k + 1 < stop:
                w[k + 1 : stop].addr_(u[k, k + 1 : stop], error, alpha=-1)
        w[stop:] -= u[start:stop, stop:].t() @ errors
    return Columns(
        code=code.t().contiguous(),
        scale=torch.stack(scales, 1).half(),
        zero=torch.stack(zeros, 1).to(torch.uint8),
        sizes=list(sizes),
    )


def restored(state: State, name: str) -> Tensor:
    """The weight (N, K) float32 of a layer in the state that ``layer_by_layer`` made."""
    code, scale, zero = (state[f"{name}.{part}"] for part in ("code", "scale", "zero"))
    sizes = state[f"{name}.sizes"].tolist()
    return Columns(code, scale, zero, sizes, state.get(f"{name}.order")).weight


def layer_by_layer(
    data: CalibrationData,
    patch: Patch,
    key: str,
    quantize: Callable[[str, Tensor, Tensor], State],
    restore: Callable[[State, str], Tensor] = restored,
) -> State:
    """quantize(name, weight, hessian) of every linear layer, decoder layer after decoder layer.

    The Hessian is the sum of x x^T. As in GPTQ, the inputs x of a decoder layer come from the
    quantized layers before it. Within a decoder layer all inputs are those of its unquantized
    weights. Weights are read from ``patch`` and replaced there. Needs the hidden states of all
    windows and the Hessians of one decoder layer. Resumable. Returns ``{name}.{part}`` for each
    part that ``quantize`` returns. restore(state, name): the weight (N, K) float32 of these parts.
    """
    state: State = {}
    with torch.no_grad():
        walk = LayerWalk(patch.model, data.windows)
        for i, prefix in data.track(list(enumerate(patch.layer_names)), key):
            linears = patch.linears_of(prefix)
            run = functools.partial(walk.run, i, walk.hidden)
            make = functools.partial(_quantized, linears, run, quantize)
            made = data.steps.once(f"{key}-{prefix}", make)
            state |= made
            for name, linear in linears.items():
                device = linear.weight.device
                patch.weight(name, restore({k: v.to(device) for k, v in made.items()}, name))
            walk.hidden = run()
    return state


def _quantized(
    linears: dict[str, nn.Linear],
    run: Callable[[], object],
    quantize: Callable[[str, Tensor, Tensor], State],
) -> State:
    """The parts of what is quantized, of the linear layers that ``run`` runs."""
    hessians = hessians_of(linears, run)
    made: State = {}
    for name, linear in linears.items():
        parts = quantize(name, linear.weight.detach(), hessians[name])
        made |= {f"{name}.{part}": value.cpu() for part, value in parts.items()}
    return made


def hessians_of(linears: dict[str, nn.Linear], run: Callable[[], object]) -> dict[str, Tensor]:
    """(K, K) float32 sums of x x^T; layers that read the same tensor in turn share one.

    A layer that never ran, of an expert that no token has, gets the unit matrix: nothing is known
    of its inputs.
    """
    total: dict[str, Tensor] = {}
    owner: dict[str, str] = {}
    last: list[Any] = [None, ""]  # input, layer that owns its sum

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        name = names[module]
        if args[0] is not last[0]:
            last[:] = [args[0], name]
            rows = args[0].flatten(0, -2).float()
            total[name] = total.get(name, 0) + rows.t() @ rows
        owner[name] = last[1]

    names: dict[nn.Module, str] = {module: name for name, module in linears.items()}
    handles = [module.register_forward_pre_hook(hook) for module in linears.values()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: total[owner[name]] if name in owner
        else torch.eye(linear.in_features, device=linear.weight.device)
        for name, linear in linears.items()
    }  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptqLike(Method):
    """``gptq-like-wNa16``: weights column by column with error feedback, activations untouched.

    After GPTQ (Frantar et al. 2022, sections 3 and 4). The Hessian is the sum of x x^T over the
    calibration text, damped by ``damping`` of its mean diagonal. A layer's inputs come from the
    quantized layers before it. The grids are asymmetric: scale in FP16, zero point of N bits, per
    output channel or per ``group`` of its columns (the last one ragged).

    order: columns by falling diagonal of the Hessian (act-order); with groups this stores a 16-bit
    index for every column of a layer.
    """

    pattern: ClassVar[str] = r"gptq-like-w(?P<weight_bits>\d{1,3})a16"
    spellings: ClassVar[tuple[str, ...]] = ("gptq-like-w4a16",)
    calibrated: ClassVar[bool] = True

    weight_bits: int = bounded(4, 2, 8)
    group: int = bounded(0, 0, 1 << 20)
    damping: float = real(0.01, 1e-6, 1.0)
    order: bool = flag(False)

    @property
    def replaces_weights(self) -> bool:
        return True

    def calibrate(self, data: CalibrationData) -> State:
        """Makes the tensors that ``restored`` reads."""

        def quantize(name: str, weight: Tensor, hessian: Tensor) -> State:
            sizes = ragged(weight.shape[1], self.group)
            order = torch.arange(weight.shape[1], device=weight.device)
            if self.order:
                order = hessian.diagonal().argsort(descending=True, stable=True)
            columns = gptq(
                weight[:, order],
                hessian[order][:, order],
                sizes,
                [self.weight_bits] * len(sizes),
                damping=self.damping,
            )
            return dataclasses.replace(columns, order=order if self.order else None).parts

        fields = f"{self.weight_bits}-{self.group}-{self.damping}-{self.order}"
        with Patch(data.model) as patch:
            return layer_by_layer(data, patch, f"gptq {fields}", quantize)

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            site.weight(name, restored(state, name))
            groups = state[f"{name}.scale"].shape[1]
            bits = self.weight_bits + groups * (_SCALE + self.weight_bits) / k
            if self.order and groups > 1:
                bits += _INDEX / n
            site.bits.add("weights", name, n * k, bits)
