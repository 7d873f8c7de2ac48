"""Sizes and layout of a decoder layer. Pure Python."""

import dataclasses

from golden.attention.format import CAP_RANGE
from golden.config import Config, ConfigError, Range, bounded, choice, declared, flag
from golden.index.format import K_MAX
from golden.kllm.config import FunctionShape
from golden.kllm.flow import GLU, NETWORK, ROUTER, members
from golden.kllm.isa import ROW_ELEMENTS, Function

CLAMPED = "gpt_oss"  # the activation of gpt-oss, as golden.llm.decoder calls it
CLAMPED_ALPHA, CLAMPED_LIMIT = 1.702, 7.0
# Of the feed-forward network, by the names that transformers gives them.
ACTIVATIONS = {
    "silu": Function.SILU,
    "swish": Function.SILU,
    "gelu_pytorch_tanh": Function.GELU,
    "gelu_new": Function.GELU,
    "gelu_fast": Function.GELU,
    "relu": Function.RELU,
    "gelu": Function.GELU_ERF,
    "gelu_python": Function.GELU_ERF,
    "quick_gelu": Function.QUICK_GELU,
    "tanh": Function.TANH,
    CLAMPED: Function.QUICK_GELU,
}
QK_NORMS = ("", "head", "row")
NORM_PLACES = ("before", "after", "both")
ATTENDERS = ("cache", "host")
PARTED = ("gate", "up", "h")  # sites of the network's inner elements
QUERIES_MAX = 8  # query heads of a KV head that a machine is built for
_HEAD_MULTIPLE = 32  # of ROTARY: the halves of a head are whole rows


def head_room(size: int) -> int:
    """The elements that a head of ``size`` takes: whole rows of both halves, the others 0."""
    return -(-size // _HEAD_MULTIPLE) * _HEAD_MULTIPLE


def served_heads(heads: int, kv_heads: int, found: int) -> int:
    """``found`` KV heads if these may be a model's, each several times; else the model's."""
    return kv_heads if found % kv_heads or heads % found else found


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerShape(Config):
    """Sizes and kind of a decoder layer."""

    hidden: int = dataclasses.field(metadata=declared(Range(16, 16383), "elements of a token"))
    heads: int = dataclasses.field(metadata=declared(Range(1, 128), "query heads"))
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int = dataclasses.field(
        metadata=declared(Range(32, 16383), "elements of a head, a multiple of 32")
    )
    intermediate: int = dataclasses.field(
        metadata=declared(Range(16, 1 << 17), "elements between gate and down")
    )
    epsilon: float = 1e-5  # addend of the norms' mean square
    biases: tuple[str, ...] = ()  # linear layers that add one
    qk_norm: str = choice("", QK_NORMS, "norm of q and k before RoPE: none, of a head, of all")
    norm_places: str = choice("before", NORM_PLACES, "of attention and of the network")
    rotary: bool = flag(True, "q and k are rotated")
    window: int = bounded(0, 0, 1 << 20, "tokens that a token attends, its own among them; 0: all")
    cap: float = 0.0  # c of c * tanh(score / c), for scores that have the scaling; 0: none
    sinks: bool = flag(False, "softmax has a score more for each query head, without a value")
    gated: bool = flag(True, "gate and up, or up alone")
    activation: str = choice("silu", ACTIVATIONS, "of gate, or of up alone")
    experts: int = bounded(0, 0, 4096, "networks of which a token passes some; 0: one, of all")
    active: int = 0  # experts that a token passes, those with the largest softmax of the router
    router_norm: bool = flag(True, "their weights are scaled to a sum of 1")

    def __post_init__(self) -> None:
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads}")
        if self.head_size % _HEAD_MULTIPLE:
            self._refuse("head_size", f"a multiple of {_HEAD_MULTIPLE}")
        if self.cap and not CAP_RANGE[0] <= self.cap <= CAP_RANGE[1]:
            self._refuse("cap", f"0 or {CAP_RANGE[0]:g}..{CAP_RANGE[1]:g}")
        self._check_range("active", min(self.experts, 1), self.experts)
        if self.experts and self.norm_places != "before":  # the lanes hold an expert's codebook
            self._refuse("norm_places", "before with experts")
        object.__setattr__(self, "biases", tuple(self.biases))
        if not set(self.biases) <= set(self.linears):
            self._refuse("biases", f"of {', '.join(self.linears)}")
        if self.clamped and not self.gated:
            self._refuse("activation", "another one without a gate")

    @property
    def linears(self) -> tuple[str, ...]:
        """Names of the linear layers; with experts those of the network are the same for each."""
        return (*members(self.gated), *([ROUTER] if self.experts else []))

    def layers_of(self, linear: str) -> tuple[str, ...]:
        """The linear layers of a name: ``gate`` alone, or with experts gate.0, gate.1 and so on."""
        if not self.experts or linear not in NETWORK:
            return (linear,)
        return tuple(f"{linear}.{expert}" for expert in range(self.experts))

    @property
    def normed_before(self) -> bool:
        """Attention and the network read what a norm gives."""
        return self.norm_places != "after"

    @property
    def may_shift_keys(self) -> bool:
        """A constant vector in all keys leaves attention as it is."""
        return not (self.cap or self.sinks)

    @property
    def function(self) -> Function:
        """The function of the network."""
        return ACTIVATIONS[self.activation]

    @property
    def clamped(self) -> bool:
        """``function(min(gate, 7)) * (1 + up)``, with up within -7..7."""
        return self.activation == CLAMPED

    @property
    def extra(self) -> FunctionShape:
        """The functions of a machine for the layer."""
        return FunctionShape.of(self.function, bounds=self.clamped)

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerOptions(Config):
    """The choices by which a layer is laid out on the accelerator."""

    fuse: bool = flag(True, "one matmul and codebook for q, k, v, and one for gate and up")
    glu: str = choice(
        "index", GLU, "gate and up quantized and multiplied by index, or in FP16 (exact)"
    )
    share: float = 0.005  # outliers on each side of a token
    center: bool = flag(False, "K gets a constant vector after RoPE (golden.kllm.conditioning)")
    parts: int = bounded(0, 0, 64, "of the network, one after the other; 0: as few as there may be")
    attention: str = choice("cache", ATTENDERS, "by the unit CACHE, or by the host, a token a pass")

    @property
    def by_host(self) -> bool:
        """The host has K and V, and attends."""
        return self.attention == "host"


def network_parts(intermediate: int, wanted: int = 0) -> int:
    """The equal parts of a network's inner elements, each of whole rows and at most ``K_MAX``.

    wanted: 0: as few as there may be. ConfigError: there are none such.
    """
    least = -(-intermediate // K_MAX)
    for parts in (wanted,) if wanted else range(least, 65):
        is_whole = intermediate % (parts * ROW_ELEMENTS) == 0 or parts == 1
        if parts >= least and is_whole:
            return parts
    raise ConfigError(
        f"intermediate must have {wanted or 'at most 64'} equal parts of whole rows of "
        f"{ROW_ELEMENTS} elements, each at most {K_MAX}, not {intermediate} elements"
    )
