"""Rotations that spread outliers over all channels, after QuaRot."""

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from golden.eval.calibration import CalibrationData
from golden.eval.method import Method, Site, State
from golden.eval.methods.gptq import Columns, gptq, layer_by_layer, restored
from golden.eval.methods.rtn import best_clip, rtn_symmetric
from golden.patch import Patch

__all__ = ["QuaRot", "Rotation", "factors", "hadamard", "paley"]

_RADIX = 64  # largest matrix that a fast transform multiplies by in one step, if it has the choice
_PALEY = 128  # largest of Paley's matrices: each costs its order in products per element
_SALT = 0x514A  # of the random signs and matrices
_KINDS = {  # linear layers of a decoder layer: the norm before them, or None where R is online
    "self_attn.q_proj": "input_layernorm",
    "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm",
    "self_attn.o_proj": None,
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
    "mlp.down_proj": None,
}


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def paley(order: int) -> Tensor | None:
    """A Hadamard matrix by Paley's constructions: (order, order) of +-1 float64, or None.

    Q is (q, q) with q prime. Q[i, j] is 0 if i = j modulo q, 1 if i - j is a square modulo q, and
    -1 otherwise. C and S have Q inside a border of 1; C is symmetric and S is skew.

        order = q + 1,        q = 3 mod 4:  I + S
        order = 2 (q + 1),    q = 1 mod 4:  C x [[1, 1], [1, -1]] + I x [[1, -1], [-1, -1]]

    Source: R. E. A. C. Paley, On orthogonal matrices, 1933.
    """
    q = order - 1
    double = not (order % 4 == 0 and _is_prime(q))
    if double:
        q = order // 2 - 1
        if order % 2 or q % 4 != 1 or not _is_prime(q):
            return None
    squares = {i * i % q for i in range(1, q)}
    character = torch.tensor([0.0, *(1.0 if i in squares else -1.0 for i in range(1, q))])
    i = torch.arange(q)
    core = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    core[1:, 1:] = character[(i[:, None] - i) % q]
    core[0, 1:] = 1
    core[1:, 0] = 1 if double else -1
    one = torch.eye(q + 1, dtype=torch.float64)
    if not double:
        return one + core
    plus = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    minus = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(core, plus) + torch.kron(one, minus)


def hadamard(order: int) -> Tensor:
    """Sylvester's matrix of a power of two: (order, order) of +-1 float64."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < order:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return found


def factors(width: int) -> tuple[int, int]:
    """(first, second): width = first * second, second a power of two.

    first is 1 for a power of two. Otherwise it is the odd part of width times the fewest factors 2
    for which ``paley`` has a Hadamard matrix, up to 128. If there is none, it is the odd part.
    """
    odd = width
    while odd % 2 == 0:
        odd //= 2
    first = odd
    while 1 < first <= _PALEY and width % first == 0:
        if paley(first) is not None:
            return first, width // first
        first *= 2
    return odd, width // odd


def small_matrix(width: int, generator: torch.Generator) -> Tensor:
    """M of ``Rotation``: (m, m) float64, orthogonal."""
    first, _ = factors(width)
    known = paley(first) if first > 1 else torch.ones(1, 1, dtype=torch.float64)
    if known is not None:
        return known / first**0.5
    q, r = torch.linalg.qr(torch.randn(first, first, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


class Rotation:
    """x -> x R on the last axis, R = D (M x H) (width, width) orthogonal, x: Kronecker product.

    width = m * 2**k.

    H: Sylvester's Hadamard matrix of order 2**k over 2**(k / 2), a fast Walsh-Hadamard transform
        of radix up to 64
    M: Hadamard matrix by ``paley`` over sqrt(m); m is the odd part of the width with as few factors
        2 as give it one
    D: diagonal of signs, or none

    Examples are 576 = 36 * 16 and 1536 = 12 * 128. All entries of R are then equal in magnitude, as
    in QuaRot. If there is no such matrix, m is the odd part itself. M is then a random orthogonal
    matrix (QR of a Gaussian one, uniformly distributed).
    """

    def __init__(self, width: int, small: Tensor, signs: Tensor | None = None) -> None:
        """small: M (m, m) float64; signs: (width,) of +-1 of any type."""
        rest = width // len(small)
        last = min(rest, _RADIX)
        steps, rest = [hadamard(last) / last**0.5], rest // last
        while rest > 1 and rest * len(small) > _RADIX:
            order = min(rest, _RADIX)
            steps.append(hadamard(order) / order**0.5)
            rest //= order
        first = hadamard(rest).to(small.device) / rest**0.5
        steps.append(torch.kron(small.contiguous(), first))
        self.signs = signs
        self._steps = [step.to(small.device) for step in steps if len(step) > 1]

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        if self.signs is not None:
            x = x * self.signs.to(x)
        behind = 1
        for step in self._steps:
            matrix = step.to(x)
            if behind == 1:
                x = x.reshape(-1, len(step)) @ matrix
            else:
                x = matrix.t() @ x.reshape(-1, len(step), behind)
            behind *= len(step)
        return x.reshape(shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuaRot(Method):
    """``quarot-wNaM``: randomised Hadamard rotations, then W per output channel, A per token.

    After QuaRot (Ashkboos et al. 2024, sections 3 and 4), in three steps:

    1. Norm weights go into the layers that read them.
    2. R rotates the residual stream, h' = h R, folded into the embedding, all linear layers and
       the head.
    3. The inputs of o_proj and down_proj are rotated while running, and the inverse is folded into
       their weights.

    Alone this changes nothing, as R R^T = I and |h R| = |h|. R is of class Rotation, with signs in
    the residual's only. QuaRot's rotation of the heads of V is part of o_proj's here, and that of K
    is left out. So K and V are those of the model and combine with any cache.

    activations: symmetric, clipped at ``clip`` of the largest magnitude (QuaRot: 0.9)
    weights: symmetric, per row the clipping that loses least (``search``)
    rounding: ``rtn`` or ``gptq``, which golden.eval.methods.gptq does on the rotated model

    FP16 scales are counted.
    """

    pattern: ClassVar[str] = r"quarot-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("quarot-w4a4",)
    calibrated: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = 4
    activation_bits: int = 4
    clip: float = 0.9
    search: bool = True
    rounding: str = "rtn"

    def __post_init__(self) -> None:
        self._check_range("weight_bits", 2, 16)
        self._check_range("activation_bits", 2, 16)
        self._check_real("clip", 0.1, 1.0)
        self._check_bool("search")
        self._check_choice("rounding", ("rtn", "gptq"))
        if self.rounding == "gptq":
            self._check_range("weight_bits", 2, 8)

    @property
    def replaces_weights(self) -> bool:
        return self.rounding == "gptq"

    def calibration_fields(self) -> dict[str, object]:
        if self.rounding == "rtn":
            return {"rounding": "rtn"}
        return {
            "rounding": "gptq", "weight_bits": self.weight_bits, "search": self.search
        }  # fmt: skip

    def calibrate(self, data: CalibrationData) -> State:
        """signs (hidden,) int8; small.K (m, m) float64 for inputs of K; gptq: as layer_by_layer."""
        generator = data.generator(_SALT)
        hidden = data.model.get_input_embeddings().embedding_dim  # type: ignore[operator]
        state: State = {
            "signs": (torch.randint(0, 2, (hidden,), generator=generator) * 2 - 1).to(torch.int8)
        }
        widths = {hidden} | {linear.in_features for linear in data.linears.values()}
        for width in sorted(widths):
            state[f"small.{width}"] = small_matrix(width, generator)
        if self.rounding == "rtn":
            return state
        device = data.windows[0].device
        with Patch(data.model) as patch, torch.no_grad():
            self._rotate(patch, {name: value.to(device) for name, value in state.items()})
            key = f"quarot gptq {self.weight_bits}-{self.search}"
            return state | layer_by_layer(data, patch, key, self._gptq)

    def _gptq(self, name: str, weight: Tensor, hessian: Tensor) -> Columns:
        clip = None if self.search else 1.0
        return gptq(
            weight, hessian, [weight.shape[1]], [self.weight_bits], symmetric=True, clip=clip
        )

    def install(self, site: Site, state: State) -> None:
        self._rotate(site, state)
        for name, linear in site.linears.items():
            n, k = linear.weight.shape
            if self.weight_bits < 16:
                if self.rounding == "gptq":
                    weight = restored(state, name)
                else:
                    weight = linear.weight.detach()
                    clip = best_clip(weight, self.weight_bits) if self.search else 1.0
                    weight = rtn_symmetric(weight, self.weight_bits, clip)
                site.weight(name, weight)
                site.bits.add("weights", name, n * k, self.weight_bits + 16 / k)
            if self.activation_bits < 16:
                site.input(linear, self._activation)
                site.bits.add("activations", name, k, self.activation_bits + 16 / k)

    def _activation(self, x: Tensor) -> Tensor:
        return rtn_symmetric(x, self.activation_bits, self.clip)

    def _rotate(self, patch: Patch, state: State) -> None:
        """The same model in other coordinates; folded in float64."""
        model: Any = patch.model
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        final = model.base_model.norm
        hidden = embedding.embedding_dim
        residual = Rotation(hidden, state[f"small.{hidden}"], state["signs"])
        online: dict[int, Rotation] = {}

        def into(module: Any, name: str, value: Tensor) -> None:
            patch.parameter(module, name, value.float())

        into(embedding, "weight", residual(embedding.weight.detach().double()))
        into(head, "weight", residual(head.weight.detach().double() * final.weight.double()))
        into(final, "weight", torch.ones_like(final.weight))
        for prefix, layer in zip(patch.layer_names, patch.layers, strict=True):
            for kind, norm in _KINDS.items():
                linear = patch.linears[f"{prefix}.{kind}"]
                weight = linear.weight.detach().double()
                if norm is not None:
                    before: Any = layer.get_submodule(norm)
                    into(linear, "weight", residual(weight * before.weight.detach().double()))
                    continue
                width = linear.in_features
                rotation = online.setdefault(width, Rotation(width, state[f"small.{width}"]))
                into(linear, "weight", residual(rotation(weight).t()).t())
                if linear.bias is not None:
                    into(linear, "bias", residual(linear.bias.detach().double()))
                patch.input(linear, rotation)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                module: Any = layer.get_submodule(norm)
                into(module, "weight", torch.ones_like(module.weight))
