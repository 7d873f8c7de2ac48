"""One LLaMA decoder layer as programs and images of the KLLM accelerator (docs/kllm-layer.md).

``quantize_layer`` makes codebooks and weight indices, from what the layer computes on calibration
tokens; ``compile_layer`` makes the programs for some new tokens behind a cached context;
``run_layer`` runs them on the golden machine and plays the host in between. Arrangement:

    x -> QUANTIZE (RMS) -> q, k, v -> ROTARY -> QUANTIZE k, v -> READ_SLOT      part 0
         the host appends k and v to the cache images
    scores -> SOFTMAX -> times V's scales -> QUANTIZE_INTEGER -> times V        part 1
      -> QUANTIZE -> o -> + x -> QUANTIZE (RMS) -> gate, up -> QUANTIZE -> GLU
      -> QUANTIZE -> down -> + -> READ

gamma of both norms is folded into the weights before k-means, 1 / sqrt(head_size) into those of q.
Cached K and V have no outliers. K of a KV head is a weight image of K = head_size, N = tokens
whose output scales are K's token scales; V one of K = tokens, N = head_size with scales 1.0, and
V's token scales multiply the probabilities.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.config import Config, ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.nearest import midpoints
from golden.kllm.assembler import Assembler, Slots, Vector
from golden.kllm.config import MachineConfig
from golden.kllm.functional import Slot
from golden.kllm.image import weight_image
from golden.kllm.isa import (
    FAILED,
    ROW_ELEMENTS,
    Binary,
    Codebook,
    Function,
    MatmulMode,
    Norm,
    Outliers,
    Statistics,
)
from golden.kllm.machine import ROW_BYTES, Machine, Result, slot_of_words
from golden.kllm.norms import fold
from golden.kllm.orizuru import outlier_count
from golden.kllm.quantize import QuantizedWeight, quantize_weight, train_activation_codebook
from golden.kllm.quantizer import quantize_command
from golden.kllm.vectors import codebook_packet

__all__ = [
    "Cache",
    "CompiledLayer",
    "LayerInputs",
    "LayerOptions",
    "LayerRun",
    "LayerShape",
    "LayerWeights",
    "PartRun",
    "QuantizedLayer",
    "append_host",
    "compile_layer",
    "layer_inputs",
    "layer_weights",
    "memories",
    "quantize_cache",
    "quantize_layer",
    "reference",
    "run_layer",
]

_ONE = FP16.bias << FP16.frac_bits
_MINUS_INFINITY = FP16.sign_bit | FP16.infinity
_LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
_INPUT_OF = {  # what each linear layer is applied to
    "qkv": "x", "q": "x", "k": "x", "v": "x", "o": "attention", "gate_up": "post",
    "gate": "post", "up": "post", "down": "h",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerShape(Config):
    """Sizes of a LLaMA decoder layer."""

    hidden: int  # elements of a token, 16..16383
    heads: int  # query heads, 1..128
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int  # elements of a head, a multiple of 32
    intermediate: int  # elements between gate and down, 16..16383
    epsilon: float = 1e-5  # addend of the norms' mean square

    def __post_init__(self) -> None:
        self._check_range("hidden", 16, 16383)
        self._check_range("heads", 1, 128)
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads}")
        self._check_range("head_size", 32, 16383)
        if self.head_size % 32:
            self._refuse("head_size", "a multiple of 32")
        self._check_range("intermediate", 16, 16383)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions(Config):
    """How a layer is laid out on the accelerator."""

    fuse: bool = True  # one matmul and codebook for q, k, v, and one for gate and up
    scores: str = "direct"  # q in FP16 by the outlier path (direct), or quantized (index)
    glu: str = "slots"  # gate and up quantized and multiplied by index (slots), or FP16 (vector)
    share: float = 0.005  # outliers on each side of a token

    def __post_init__(self) -> None:
        self._check_bool("fuse")
        self._check_choice("scores", ("direct", "index"))
        self._check_choice("glu", ("slots", "vector"))


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """Real tensors of a layer. linear: (N, K) of q, k, v, o, gate, up, down, as torch.nn.Linear."""

    shape: LayerShape
    input_norm: Tensor
    post_norm: Tensor
    linear: Mapping[str, Tensor]


def layer_weights(layer: Any, config: Any) -> LayerWeights:
    """Of a transformers LlamaDecoderLayer and its model's configuration; ValueError: biases."""
    attention, mlp = layer.self_attn, layer.mlp
    modules = {
        "q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj,
        "o": attention.o_proj, "gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj,
    }  # fmt: skip
    for name, module in modules.items():
        if module.bias is not None:
            raise ValueError(f"{name} has a bias: such a layer is not supported")
    shape = LayerShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=modules["q"].weight.shape[0] // config.num_attention_heads,
        intermediate=config.intermediate_size,
        epsilon=config.rms_norm_eps,
    )
    return LayerWeights(
        shape=shape,
        input_norm=layer.input_layernorm.weight.detach().double(),
        post_norm=layer.post_attention_layernorm.weight.detach().double(),
        linear={name: module.weight.detach().double() for name, module in modules.items()},
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: (T, heads, size); cos, sin: (T, size / 2)."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def reference(weights: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Tensor]:
    """The layer in float64 on T tokens (T, hidden), causal, and what it computes on the way.

    cos, sin: (T, head_size / 2). Names: x, q (scaled by 1 / sqrt(head_size)) and k after ROTARY
    (T, heads, head_size), v, attention, post (after the first residual), gate, up, h, y.
    """
    shape, w = weights.shape, weights.linear
    x, cos, sin = x.double(), cos.double(), sin.double()

    def norm(value: Tensor, gamma: Tensor) -> Tensor:
        mean_square = value.square().mean(dim=-1, keepdim=True)
        return value * torch.rsqrt(mean_square + shape.epsilon) * gamma

    def heads(value: Tensor, count: int) -> Tensor:
        return value.reshape(len(x), count, shape.head_size)

    normed = norm(x, weights.input_norm)
    q = _rotate(heads(normed @ w["q"].t(), shape.heads), cos, sin) * shape.head_size**-0.5
    k = _rotate(heads(normed @ w["k"].t(), shape.kv_heads), cos, sin)
    v = heads(normed @ w["v"].t(), shape.kv_heads)
    of_head = torch.arange(shape.heads) // shape.group
    scores = torch.einsum("thd,shd->hts", q, k[:, of_head])
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    p = scores.masked_fill(~causal, -torch.inf).softmax(dim=-1)
    attention = torch.einsum("hts,shd->thd", p, v[:, of_head]).reshape(len(x), -1)
    post = x + attention @ w["o"].t()
    normed = norm(post, weights.post_norm)
    gate, up = normed @ w["gate"].t(), normed @ w["up"].t()
    h = torch.nn.functional.silu(gate) * up
    return {
        "x": x, "q": q, "k": k, "v": v, "attention": attention, "post": post, "gate": gate,
        "up": up, "h": h, "y": post + h @ w["down"].t(),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LayerInputs:
    """What a layer of a model sees on T tokens, and gives: x, y (T, hidden) float32.

    cos, sin: (T, head_size / 2).
    """

    x: Tensor
    y: Tensor
    cos: Tensor
    sin: Tensor


def layer_inputs(model: Any, ids: Tensor, layer: int) -> LayerInputs:
    """Of layer ``layer`` of a transformers LLaMA model on token ids (T,); ValueError: no such."""
    layers = model.model.layers
    if not 0 <= layer < len(layers):
        raise ValueError(f"layer must be 0..{len(layers) - 1}, not {layer}")
    seen: dict[str, Any] = {}

    def before(_module: Any, args: tuple, keywords: dict[str, Any]) -> None:
        seen["x"] = args[0] if args else keywords["hidden_states"]
        seen["angles"] = keywords["position_embeddings"]

    def after(_module: Any, _args: tuple, output: Any) -> None:
        seen["y"] = output[0] if isinstance(output, tuple) else output

    handles = [
        layers[layer].register_forward_pre_hook(before, with_kwargs=True),
        layers[layer].register_forward_hook(after),
    ]
    try:
        with torch.no_grad():
            model(ids[None], use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    cos, sin = (angles[0, :, : angles.shape[-1] // 2] for angles in seen["angles"])
    hidden = seen["x"].shape[-1]
    return LayerInputs(seen["x"][0], seen["y"].reshape(-1, hidden), cos, sin)


@dataclasses.dataclass(frozen=True)
class QuantizedLayer:
    """weight: by matmul (fused or not); codebook: of each activation, k and v of the caches."""

    shape: LayerShape
    options: LayerOptions
    weight: Mapping[str, QuantizedWeight]
    codebook: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        """As one .npz file."""
        arrays: dict[str, Any] = {f"codebook.{n}": c.numpy() for n, c in self.codebook.items()}
        for name, weight in self.weight.items():
            for field in ("index", "scale", "codebook"):
                arrays[f"weight.{name}.{field}"] = getattr(weight, field).numpy()
        for name, config in (("shape", self.shape), ("options", self.options)):
            for field, value in config.describe().items():
                arrays[f"{name}.{field}"] = np.array(value)
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> "QuantizedLayer":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        parts: dict[str, dict[str, Any]] = {"shape": {}, "options": {}}
        codebook: dict[str, Tensor] = {}
        weight: dict[str, dict[str, Tensor]] = {}
        for name, array in arrays.items():
            kind, _, rest = name.partition(".")
            if kind in parts:
                parts[kind][rest] = array.item()
            elif kind == "codebook":
                codebook[rest] = torch.from_numpy(array)
            else:
                matmul, _, field = rest.partition(".")
                weight.setdefault(matmul, {})[field] = torch.from_numpy(array)
        return cls(
            shape=LayerShape(**parts["shape"]),
            options=LayerOptions(**parts["options"]),
            weight={name: QuantizedWeight(**fields) for name, fields in weight.items()},
            codebook=codebook,
        )


def quantize_layer(
    weights: LayerWeights,
    seen: Mapping[str, Tensor],
    bits_a: int = 4,
    bits_b: int = 4,
    options: LayerOptions | None = None,
) -> QuantizedLayer:
    """Codebooks and weight indices; ``seen``: what ``reference`` gives on calibration tokens.

    ConfigError: bits_a above bits_b, as cached K and V are clustered with bits_a and used with
    bits_b.
    """
    options = options or LayerOptions()
    if bits_a > bits_b:
        raise ConfigError(f"bits_a must be at most bits_b = {bits_b}, not {bits_a}")
    shape = weights.shape
    w = {name: tensor.double() for name, tensor in weights.linear.items()}
    w["q"] = w["q"] * shape.head_size**-0.5
    for name in ("q", "k", "v", "gate", "up"):
        gamma = weights.input_norm if name in "qkv" else weights.post_norm
        w[name] = fold(w[name].t(), gamma).weight.t()
    if options.fuse:
        w["qkv"] = torch.cat([w.pop(name) for name in ("q", "k", "v")])
        if shape.intermediate % ROW_ELEMENTS == 0:  # else up would begin within a row
            w["gate_up"] = torch.cat([w.pop(name) for name in ("gate", "up")])
    weight = {name: quantize_weight(tensor, bits_b) for name, tensor in w.items()}
    codebook = {}
    for name in ("x", "attention", "post", "gate", "up", "h"):
        codebook[name] = train_activation_codebook(
            bits_from_float(seen[name].double()), bits_a, share=options.share
        )
    for name in ("q", "k", "v"):
        vectors = seen[name].double().reshape(-1, shape.head_size)
        codebook[name] = train_activation_codebook(bits_from_float(vectors), bits_a, share=0)
    return QuantizedLayer(shape=shape, options=options, weight=weight, codebook=codebook)


@dataclasses.dataclass(frozen=True)
class Cache:
    """Cached tokens. index: (kv_heads, T, head_size), scale: (kv_heads, T) FP16 words; int64."""

    k_index: Tensor
    k_scale: Tensor
    v_index: Tensor
    v_scale: Tensor

    @property
    def tokens(self) -> int:
        return self.k_scale.shape[1]

    def append(self, k: list[list[Slot]], v: list[list[Slot]]) -> "Cache":
        """With the slots of new tokens, k[token][head]."""

        def index(old: Tensor, new: list[list[Slot]]) -> Tensor:
            rows = [torch.stack([slot.index for slot in token]) for token in new]
            return torch.cat((old, torch.stack(rows, dim=1)), dim=1)

        def scale(old: Tensor, new: list[list[Slot]]) -> Tensor:
            rows = [torch.tensor([slot.scale for slot in token]) for token in new]
            return torch.cat((old, torch.stack(rows, dim=1)), dim=1)

        return Cache(
            index(self.k_index, k), scale(self.k_scale, k),
            index(self.v_index, v), scale(self.v_scale, v),
        )  # fmt: skip


def quantize_cache(quantized: QuantizedLayer, k: Tensor, v: Tensor) -> Cache:
    """Real (T, kv_heads, head_size) keys, rotated, and values as the accelerator stores them."""
    made = []
    for name, real in (("k", k), ("v", v)):
        words = bits_from_float(real.double()).permute(1, 0, 2)
        heads, tokens, size = words.shape
        codebook = quantized.codebook[name]
        slots = quantize_command(words.reshape(-1, size), codebook, Outliers(), 0)
        if slots.command_status:
            raise ValueError(f"{name} is not finite in FP16")
        made += [slots.index.reshape(heads, tokens, size), slots.scale.reshape(heads, tokens)]
    return Cache(*made)


class _DataMemory:
    """Vectors one behind the other, each from a row of its own."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.place: dict[str, tuple[int, int]] = {}  # first row, rows

    def add(self, name: str, *vectors: Any) -> None:
        first = len(self.rows)
        for vector in vectors:
            words = np.asarray(vector, dtype=np.int64)
            padded = np.zeros(-(-len(words) // ROW_ELEMENTS) * ROW_ELEMENTS, dtype=np.int64)
            padded[: len(words)] = words
            self.rows += list(padded.reshape(-1, ROW_ELEMENTS))
        self.place[name] = first, len(self.rows) - first

    def bytes(self) -> np.ndarray:
        return np.array(self.rows).astype("<u2").reshape(-1).view(np.uint8)


@dataclasses.dataclass(frozen=True)
class CompiledLayer:
    """Programs and memories but for the tokens and the cache.

    parts: words of part 0 and part 1. data: the data memory, zeros where the host writes; place:
    first row and rows of each of its vectors. weights: one memory per port, zeros where the caches
    go; image: word address and shape (K, N) of each image.
    """

    config: MachineConfig
    quantized: QuantizedLayer
    tokens: int
    context: int
    parts: list[list[int]]
    data: np.ndarray
    place: Mapping[str, tuple[int, int]]
    weights: list[np.ndarray]
    image: Mapping[str, tuple[int, int, int]]


def _padded(codebook: Tensor, bits: int) -> Tensor:
    """The last centroid repeated up to 2**bits entries."""
    extra = (1 << bits) - len(codebook)
    return torch.cat((codebook, codebook[-1:].expand(extra)))


class _Compiler:
    def __init__(self, quantized: QuantizedLayer, config: MachineConfig, tokens: int, context: int):
        self.quantized, self.config = quantized, config
        self.shape, self.options = quantized.shape, quantized.options
        self.tokens, self.context, self.all_tokens = tokens, context, context + tokens
        self.data = _DataMemory()
        self.asm = Assembler(config)
        self.head_rows = self.shape.head_size // ROW_ELEMENTS
        self.image: dict[str, tuple[int, int, int]] = {}
        self.weights = self._images()
        self._constants()

    # Memories.

    def _images(self) -> list[np.ndarray]:
        shape, config, address = self.shape, self.config, 0
        sizes = [(n, *w.index.shape) for n, w in self.quantized.weight.items()]
        for head in range(shape.kv_heads):
            sizes.append((f"k{head}", shape.head_size, self.all_tokens))
            sizes.append((f"v{head}", self.all_tokens, shape.head_size))
        for name, length, outputs in sizes:
            self.image[name] = address, length, outputs
            address += config.image_words(length, outputs)
        memory = [np.zeros(address * config.port_bits // 8, np.uint8) for _ in range(config.ports)]
        for name, weight in self.quantized.weight.items():
            _write_image(memory, config, self.image[name][0], weight.index, weight.scale)
        return memory

    def _constants(self) -> None:
        quantized, shape, config = self.quantized, self.shape, self.config
        for name, codebook in quantized.codebook.items():
            self.data.add(f"codebook.{name}", codebook, midpoints(codebook))
        for name, weight in quantized.weight.items():
            a = quantized.codebook[_INPUT_OF[name]]
            self.data.add(f"packet.{name}", codebook_packet(a, weight.codebook, config.product))
        k = _padded(quantized.codebook["k"], config.bits_b)
        q = quantized.codebook["q"]
        self.data.add("packet.scores", codebook_packet(q, k, config.product))
        self.data.add("packet.cached_v", _padded(quantized.codebook["v"], config.bits_b))
        for t in range(self.tokens):
            for name in ("cos", "sin"):
                self.data.add(f"{name}{t}", np.zeros(shape.head_size // 2))
        for t in range(self.tokens - 1):
            hidden = np.arange(self.all_tokens) > self.context + t
            self.data.add(f"mask{t}", np.where(hidden, _MINUS_INFINITY, 0))
        for head in range(shape.kv_heads):
            self.data.add(f"v_scale{head}", np.zeros(self.all_tokens))
        self.data.add("x", *np.zeros((self.tokens, shape.hidden)))

    # Pieces.

    def _load(self, name: str, length: int, tokens: int = 1) -> Vector:
        address, rows = self.data.place[name]
        vector = self.asm.vector(length, tokens)
        assert vector.rows == rows, name
        self.asm.load(address=address, dst=vector)
        return vector

    def _clustering(self, name: str) -> None:
        rows = self._load(f"codebook.{name}", 2 * ROW_ELEMENTS)
        self.asm.activation_codebook(src=rows)
        self.asm.free(rows)

    def _lanes(self, name: str, kind: Codebook = Codebook.KMEANS) -> None:
        words = self.config.kmeans_words if kind == Codebook.KMEANS else self.config.integer_words
        packet = self._load(f"packet.{name}", words)
        self.asm.lane_codebook(src=packet, kind=kind)
        self.asm.free(packet)

    def _table(self, name: str, table: int) -> None:
        rows = self._load(f"codebook.{name}", 2 * ROW_ELEMENTS)
        self.asm.function_codebook(src=rows, table=table)
        self.asm.free(rows)

    def _quantize(self, name: str, src: Vector, outliers: bool, norm: Norm = Norm.NONE) -> Slots:
        slots = self.asm.slots(src.tokens)
        k = 0
        if outliers and self.options.share:
            k = min(outlier_count(src.length, self.options.share), self.config.outliers_max // 2)
        epsilon = int(bits_from_float(torch.tensor(self.shape.epsilon).double(), FP32))
        statistics = Statistics(norm, epsilon)
        self.asm.quantize(src=src, slot=slots, outliers=Outliers(k, k), statistics=statistics)
        return slots

    def _linear(self, name: str, slots: Slots, dst: Vector, fold_norm: bool = False) -> None:
        """``dst``: (tokens, N) vectors."""
        address, length, outputs = self.image[name]
        assert outputs == dst.length, name
        self._lanes(name)
        self.asm.matmul(weights=address, dst=dst, length=length, slot=slots, fold_norm=fold_norm)

    # The layer.

    def compile(self) -> CompiledLayer:
        asm, shape = self.asm, self.shape
        x = self._load("x", shape.hidden, self.tokens)
        rotated = self._project(x)
        asm.part()
        attention = self._attend(rotated)
        self._residual("attention", "o", attention, x)
        self._mlp(x)
        asm.read(src=x)
        return CompiledLayer(
            config=self.config,
            quantized=self.quantized,
            tokens=self.tokens,
            context=self.context,
            parts=asm.parts,
            data=self.data.bytes(),
            place=self.data.place,
            weights=self.weights,
            image=self.image,
        )

    def _project(self, x: Vector) -> Vector:
        """q, k, v; rotated q and k are left; quantized k and v go to the host, token by token."""
        asm, shape, size = self.asm, self.shape, self.shape.head_size
        q, kv = shape.heads * size, shape.kv_heads * size
        self._clustering("x")
        slots = self._quantize("x", x, outliers=True, norm=Norm.RMS)
        made = asm.vector(q + 2 * kv, self.tokens)
        if "qkv" in self.image:
            self._linear("qkv", slots, made, fold_norm=True)
        else:
            for name, first, outputs in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv)):
                dst = made.part(first, outputs, self.tokens, made.stride)
                self._linear(name, slots, dst, fold_norm=True)
        asm.free(slots)
        rotated = asm.vector(q + kv, self.tokens)
        for t in range(self.tokens):
            cos, sin = (self._load(f"{name}{t}", size // 2) for name in ("cos", "sin"))
            asm.rotary(
                src=made.token(t), dst=rotated.token(t), cos=cos, sin=sin,
                heads=shape.heads + shape.kv_heads, head_size=size,
            )  # fmt: skip
            asm.free(cos, sin)
        step = max(1, min(shape.kv_heads, self.config.slots // 2))
        for name, source, first in (("k", rotated, q), ("v", made, q + kv)):
            self._clustering(name)
            for t in range(self.tokens):
                for head in range(0, shape.kv_heads, step):
                    count = min(step, shape.kv_heads - head)
                    heads = source.token(t).part(first + head * size, size, count, self.head_rows)
                    slots = self._quantize(name, heads, outliers=False)
                    for n in range(count):
                        asm.read_slot(slot=slots.first + n)
                    asm.free(slots)
        asm.free(made)
        return rotated

    def _attend(self, rotated: Vector) -> Vector:
        """Attention of all heads: KV heads in blocks that the slots hold, scores first, then V."""
        asm, shape = self.asm, self.shape
        attention = asm.vector(shape.heads * shape.head_size, self.tokens)
        jobs = [(t, head) for t in range(self.tokens) for head in range(shape.kv_heads)]
        index = self.options.scores == "index"
        free = self.config.slots - (shape.group if index else 0)  # q needs slots, too
        block = max(1, free // shape.group)
        for first in range(0, len(jobs), block):
            if index:
                self._clustering("q")
            self._lanes("scores")
            weighted = [self._scores(rotated, *job) for job in jobs[first : first + block]]
            self._lanes("cached_v", Codebook.INTEGER)
            for (t, head), slots in zip(jobs[first : first + block], weighted, strict=True):
                dst = attention.token(t).part(
                    head * shape.group * shape.head_size, shape.head_size, shape.group,
                    self.head_rows,
                )  # fmt: skip
                asm.matmul(
                    weights=self.image[f"v{head}"][0], dst=dst, length=self.all_tokens,
                    slot=slots, mode=MatmulMode.INTEGER,
                )  # fmt: skip
                asm.free(slots)
        asm.free(rotated)
        return attention

    def _scores(self, rotated: Vector, t: int, head: int) -> Slots:
        """Probabilities of token t's heads that share a KV head, times V's scales, in slots."""
        asm, shape, size = self.asm, self.shape, self.shape.head_size
        heads = rotated.token(t).part(head * shape.group * size, size, shape.group, self.head_rows)
        scores = asm.vector(self.all_tokens, shape.group)
        address = self.image[f"k{head}"][0]
        if self.options.scores == "index":
            slots = self._quantize("q", heads, outliers=False)
            asm.matmul(weights=address, dst=scores, length=size, slot=slots)
            asm.free(slots)
        else:
            asm.matmul(weights=address, dst=scores, length=size, src=heads, mode=MatmulMode.DIRECT)
        if t < self.tokens - 1:
            mask = self._load(f"mask{t}", self.all_tokens)
            asm.binary(op=Binary.ADD, a=scores, b=mask, dst=scores)
            asm.free(mask)
        asm.softmax(src=scores, dst=scores)
        scale = self._load(f"v_scale{head}", self.all_tokens)
        asm.binary(op=Binary.MULTIPLY, a=scores, b=scale, dst=scores)
        asm.free(scale)
        slots = asm.slots(shape.group)
        asm.quantize_integer(src=scores, slot=slots)
        asm.free(scores)
        return slots

    def _residual(self, name: str, linear: str, value: Vector, x: Vector) -> None:
        """``x += linear(quantized value)``; frees ``value``."""
        asm = self.asm
        self._clustering(name)
        slots = self._quantize(name, value, outliers=True)
        asm.free(value)
        made = asm.vector(self.shape.hidden, self.tokens)
        self._linear(linear, slots, made)
        asm.binary(op=Binary.ADD, a=x, b=made, dst=x)
        asm.free(made, slots)

    def _mlp(self, x: Vector) -> None:
        asm, shape = self.asm, self.shape
        self._clustering("post")
        slots = self._quantize("post", x, outliers=True, norm=Norm.RMS)
        half = -(-shape.intermediate // ROW_ELEMENTS) * ROW_ELEMENTS
        made = asm.vector(2 * half, self.tokens)
        gate = made.part(0, shape.intermediate, self.tokens, made.stride)
        up = made.part(half, shape.intermediate, self.tokens, made.stride)
        if "gate_up" in self.image:
            self._linear("gate_up", slots, made, fold_norm=True)
        else:
            self._linear("gate", slots, gate, fold_norm=True)
            self._linear("up", slots, up, fold_norm=True)
        asm.free(slots)
        h = asm.vector(shape.intermediate, self.tokens)
        if self.options.glu == "slots":
            self._clustering("gate")
            gates = self._quantize("gate", gate, outliers=True)
            self._clustering("up")
            ups = self._quantize("up", up, outliers=True)
            self._table("gate", 0)
            self._table("up", 1)
            for t in range(self.tokens):
                asm.glu(
                    function=Function.SILU, slot_a=gates.first + t, slot_b=ups.first + t,
                    dst=h.token(t),
                )  # fmt: skip
            asm.free(gates, ups)
        else:
            for t in range(self.tokens):
                asm.function(function=Function.SILU, src=gate.token(t), dst=h.token(t))
            asm.binary(op=Binary.MULTIPLY, a=h, b=up, dst=h)
        asm.free(made)
        self._residual("h", "down", h, x)


def compile_layer(
    quantized: QuantizedLayer, config: MachineConfig, tokens: int = 1, context: int = 0
) -> CompiledLayer:
    """Programs for ``tokens`` new tokens behind ``context`` cached ones.

    ConfigError: a layer that the machine has no room for; AssemblyError: no rows or slots left.
    """
    shape = quantized.shape
    if tokens < 1 or context < 0:
        raise ConfigError(f"tokens must be at least 1, context at least 0, not {tokens}, {context}")
    sizes = {
        "slot_elements": max(shape.hidden, shape.intermediate, context + tokens,
                             shape.heads * shape.head_size),
        "softmax_elements": context + tokens,
        "outliers_max": shape.head_size if quantized.options.scores == "direct" else 2,
        "slots": max(shape.group, 2 * tokens),
        "bits_a": max(len(c) for c in quantized.codebook.values()).bit_length() - 1,
        "bits_b": max(w.bits for w in quantized.weight.values()),
    }  # fmt: skip
    for field, needed in sizes.items():
        found = getattr(config, field)
        if found < needed or (field.startswith("bits") and found != needed):
            raise ConfigError(f"MachineConfig.{field} must be {needed} for this layer, not {found}")
    # Longest tokens that share weights: heads of one KV head, or the new tokens.
    shared = [context + tokens] if shape.group > 1 else []
    if tokens > 1:
        shared += [sizes["slot_elements"]]
    needed = max((-(-length // config.elements) for length in shared), default=0)
    if config.replay_beats < needed:
        raise ConfigError(
            f"MachineConfig.replay_beats must be at least {needed} for this layer, "
            f"not {config.replay_beats}"
        )
    return _Compiler(quantized, config, tokens, context).compile()


def _write_image(
    memory: list[np.ndarray],
    config: MachineConfig,
    address: int,
    index: Tensor,
    scale: Tensor,
) -> None:
    made = weight_image(index.numpy(), scale.numpy(), config.layout)
    first = address * config.port_bits // 8
    for port, data in zip(memory, made, strict=True):
        port[first : first + len(data)] = data


def append_host(
    compiled: CompiledLayer, data: np.ndarray, weights: list[np.ndarray], cache: Cache
) -> None:
    """Write the cache images and V's scales into the memories, as the host does before part 1."""
    size = compiled.quantized.shape.head_size
    for head in range(len(cache.k_scale)):
        k, v = compiled.image[f"k{head}"], compiled.image[f"v{head}"]
        _write_image(weights, compiled.config, k[0], cache.k_index[head].t(), cache.k_scale[head])
        ones = torch.full((size,), _ONE)
        _write_image(weights, compiled.config, v[0], cache.v_index[head], ones)
        _write_vector(compiled, data, f"v_scale{head}", cache.v_scale[head])


def _write_vector(
    compiled: CompiledLayer, data: np.ndarray, name: str, words: Tensor, token: int = 0
) -> None:
    row = compiled.place[name][0] + token * -(-len(words) // ROW_ELEMENTS)
    raw = words.numpy().astype("<u2").view(np.uint8)
    data[row * ROW_BYTES : row * ROW_BYTES + len(raw)] = raw


def memories(
    compiled: CompiledLayer, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Data and weight memories before part 0: tokens (tokens, hidden), real, and their angles."""
    data, weights = compiled.data.copy(), [port.copy() for port in compiled.weights]
    for t, words in enumerate(bits_from_float(x.double())):
        _write_vector(compiled, data, "x", words, t)
    for name, angles in (("cos", cos), ("sin", sin)):
        for t, words in enumerate(bits_from_float(angles.double())):
            _write_vector(compiled, data, f"{name}{t}", words)
    return data, weights


@dataclasses.dataclass(frozen=True)
class PartRun:
    """A part of the program, the memories that it began with, and what came of it."""

    words: list[int]
    data: np.ndarray
    weights: list[np.ndarray]
    results: list[Result]
    readback: list[int]


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """y: (tokens, hidden) FP16 words; cache: with the new tokens."""

    y: Tensor
    cache: Cache
    parts: list[PartRun]

    @property
    def value(self) -> Tensor:
        """y as float64."""
        return float_from_bits(self.y, FP16)


def run_layer(
    compiled: CompiledLayer, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache
) -> LayerRun:
    """Both parts on the golden machine, the host's work in between.

    x: (tokens, hidden) real; cos, sin: (tokens, head_size / 2); cache: the context.
    ArithmeticError: a command failed, named with its status.
    """
    shape = compiled.quantized.shape
    if cache.tokens != compiled.context:
        raise ValueError(f"a cache of {compiled.context} tokens needed, not {cache.tokens}")
    data, weights = memories(compiled, x, cos, sin)
    machine = Machine(compiled.config, data, weights)
    parts = []

    def run(words: list[int]) -> list[int]:
        before = machine.data.data.copy(), [memory.data.copy() for memory in machine.weights]
        results = machine.run(words)
        for result in results:
            if result.status & FAILED:
                where = f"command {result.tag} ({result.unit.name})"
                raise ArithmeticError(f"{where}: {result.status!r}")
        parts.append(PartRun(words, *before, results, machine.readback))
        return machine.readback

    words, slots = run(compiled.parts[0]), []
    while words:
        slot, taken = slot_of_words(words)
        slots.append(slot)
        words = words[taken:]
    heads = shape.kv_heads
    by_token = [slots[n : n + heads] for n in range(0, len(slots), heads)]
    cache = cache.append(by_token[: compiled.tokens], by_token[compiled.tokens :])
    append_host(compiled, machine.data.data, [m.data for m in machine.weights], cache)
    rows = torch.tensor(run(compiled.parts[1]))
    y = torch.stack((rows & 0xFFFF, rows >> 16), dim=1).reshape(compiled.tokens, -1)
    return LayerRun(y=y[:, : shape.hidden], cache=cache, parts=parts)
