"""A decoder layer in float64 on dequantized operands: what the machine must be near to.

Of the quantized layer it takes weights, codebooks, thresholds and K's offset. Biases, norms and the
scaling of scores are those of the real weights. So it finds a constant that is quantized wrongly.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.cache import CacheUnit
from golden.kllm.config import MachineConfig, outlier_count
from golden.kllm.flow import FUSED, ROUTER, kind_of
from golden.kllm.isa import Outliers
from golden.kllm.layer.host import History
from golden.kllm.layer.layout import linear_sizes
from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.layer.weights import LayerWeights
from golden.kllm.quantizer import quantize_command
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op, Status

_FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu": torch.nn.functional.gelu,
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "gpt_oss": lambda x: x / (1 + torch.exp(-1.702 * x)),
}


def decoded(
    quantized: QuantizedLayer, vectors: Sequence[History], config: MachineConfig
) -> tuple[Tensor, Tensor]:
    """(kv_heads, tokens, head_size) K and V as the pages give them back, float64."""
    cached = CacheUnit(config.cache, config.batch)
    cached.begin(quantized.thresholds.expand(config.cache.layers, 2, 4))
    sequence = cached.request(Request(Op.OPEN)).sequence
    made = []
    for kv in Kv:
        words = torch.cat([each.v if kv else each.k for each in vectors]).tolist()
        for token, vector in enumerate(words):
            request = Request(Op.APPEND, sequence, 0, kv, token=token, vector=vector)
            assert cached.request(request).status == Status.OK
        heads = config.cache.kv.heads
        answer = cached.request(Request(Op.READ, sequence, 0, kv, 0, heads, len(words)))
        parts = torch.tensor(answer.words).transpose(0, 1).reshape(len(words), heads, -1)
        made.append(float_from_bits(parts).transpose(0, 1))
    return made[0], made[1]


class Plain:
    """See the module. factor: of linear layers whose outputs a norm takes."""

    def __init__(
        self, quantized: QuantizedLayer, weights: LayerWeights, factor: Mapping[str, float]
    ) -> None:
        self.quantized, self.weights, self.factor = quantized, weights, factor
        self.shape, self.share = quantized.shape, quantized.options.share
        self.matrix: dict[str, Tensor] = {}
        for name, each in quantized.weight.items():
            kind, dot, number = name.partition(".")
            if kind == ROUTER:  # the sum of its images
                self.matrix[ROUTER] = self.matrix.get(ROUTER, 0) + each.dequantize()
                continue
            members = FUSED.get(kind, (kind,))
            sizes = [linear_sizes(self.shape)[member][1] for member in members]
            parts = each.dequantize().split(sizes, dim=1)
            names = [f"{member}{dot}{number}" for member in members]
            self.matrix |= dict(zip(names, parts, strict=True))

    def linear(self, name: str, value: Tensor) -> Tensor:
        """A linear layer with its bias and its norm."""
        weights, gamma = self.weights, self.weights.norm.get(name)
        made = value @ self.matrix[name] / self.factor.get(kind_of(name), 1.0)
        scaling = weights.scaling if name == "q" else 1.0
        if name in weights.bias:
            made = made + weights.bias[name] * (1.0 if gamma is not None else scaling)
        if gamma is None:
            return made
        parts = made.unflatten(-1, (-1, len(gamma)))
        mean_square = parts.square().mean(-1, keepdim=True)
        normed = parts * torch.rsqrt(mean_square + self.shape.epsilon) * gamma
        return normed.flatten(-2) * scaling

    def dequantized(self, name: str, value: Tensor) -> Tensor:
        """One vector as a slot holds it."""
        words, codebook = bits_from_float(value[None]), self.quantized.codebook[name]
        k = outlier_count(len(value), self.share)
        made = quantize_command(words, codebook, Outliers(k, k), 999)
        inlier = float_from_bits(codebook)[made.index] * float_from_bits(made.scale)[:, None]
        return torch.where(made.outlier, float_from_bits(words), inlier)[0]

    def normed(self, name: str, value: Tensor) -> Tensor:
        """``value`` as the lanes read it: gamma is in the weights."""
        value = self.dequantized(name, value)
        if self.shape.norm_places == "after":
            return value
        return value * torch.rsqrt(value.square().mean() + self.shape.epsilon)

    def parted(self, site: str, value: Tensor) -> Tensor:
        """``dequantized``, part by part."""
        parts = self.quantized.options.parts or 1
        return torch.cat([self.dequantized(site, each) for each in value.chunk(parts)])

    def network(self, post: Tensor) -> Tensor:
        """The vector that the feed-forward network adds."""
        u = self.normed("post", post)
        if not self.shape.experts:
            return self.inner(u)
        share, index = self.linear(ROUTER, u).softmax(-1).topk(self.shape.active)
        if self.shape.router_norm:
            share = share / share.sum()
        pairs = zip(share.tolist(), index.tolist(), strict=True)
        return sum(
            (by * self.inner(u, f".{expert}") for by, expert in pairs), start=torch.zeros_like(post)
        )

    def inner(self, u: Tensor, own: str = "") -> Tensor:
        """The network of a normed vector, or that of an expert such as ``.3``."""
        function = _FUNCTIONS[self.shape.activation]
        is_index = self.quantized.options.glu == "index"
        names = ("gate", "up") if self.shape.gated else ("up",)
        first, *others = (self.linear(f"{name}{own}", u) for name in names)
        if self.shape.activation == "gpt_oss":
            first, others = first.clamp(max=7), [others[0].clamp(-7, 7) + 1]
        if is_index:
            first = self.parted(names[0], first)
            others = [self.parted("up", each) for each in others]
        h = function(first) * (others[0] if others else 1)
        return self.linear(f"down{own}", self.parted("h", h))


def plain(
    made: Plain, config: MachineConfig, x: Tensor, cos: Tensor, sin: Tensor, history: History
) -> Tensor:
    """The layer on some tokens of a sequence after its history: (tokens, hidden)."""
    quantized, shape = made.quantized, made.shape

    def rotate(value: Tensor, t: int) -> Tensor:
        if not shape.rotary:
            return value
        half = shape.head_size // 2
        turned = torch.cat((-value[:, half:], value[:, :half]), dim=1)
        return value * cos[t].double().repeat(2) + turned * sin[t].double().repeat(2)

    projected: list[Tensor] = []
    new: list[History] = []
    for t, token in enumerate(x.double()):
        u = made.normed("x", token)
        q, k, v = (made.linear(name, u).reshape(-1, shape.head_size) for name in "qkv")
        q, k = rotate(q, t), rotate(k, t)
        if quantized.offset is not None:
            k = k + float_from_bits(quantized.offset)
        projected.append(q)
        new.append(History(*(bits_from_float(each.flatten()[None]) for each in (k, v))))
    keys, values = decoded(quantized, [history, *new], config)
    out = []
    for t, token in enumerate(x.double()):
        last, heads = len(history) + t + 1, []
        first = max(0, last - shape.window) if shape.window else 0
        for h in range(shape.heads):
            g = h * shape.kv_heads // shape.heads
            scores = keys[g][first:last] @ projected[t][h]
            if shape.cap:
                scores = shape.cap * (scores / shape.cap).tanh()
            if made.weights.sinks is not None:
                scores = torch.cat((scores, made.weights.sinks[h : h + 1]))
            p = scores.softmax(dim=0)[: last - first]
            heads.append(p @ values[g][first:last])
        post = token + made.linear("o", made.dequantized("attention", torch.cat(heads)))
        out.append(post + made.network(post))
    return torch.stack(out)
