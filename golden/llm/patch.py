"""A transformers model of the LLaMA kind, changed for a while: hooks and other weights.

No code of the model is copied. Closing a ``Patch`` restores what it changed. Patches may be nested
and are closed in the opposite order.
"""

import dataclasses
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from golden.llm.checkpoint import CheckpointError
from golden.llm.structure import keeps_heads_first

K, V = 0, 1
_HIDDEN = "hidden_states"  # how transformers calls the first argument of a module
_ATTENTION = "senbazuru"  # the name of our attention function in the tables of transformers

Function = Callable[[Tensor], Tensor]
# (layer, K or V, x): x (B, T, kv_heads * head_dim); None leaves x as it is.
KVTap = Callable[[int, int, Tensor], Tensor | None]
# (layer, q): q (B, heads, T, head_dim) after RoPE.
QueryTap = Callable[[int, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Scores:
    """Says what becomes of the products of a layer's queries and keys, in this order.

    scaling: multiplies them
    cap: they become ``cap * tanh(score / cap)``; 0: they stay
    mask: (T, T) bool, True where query t sees key s; None: it sees all up to its own
    sinks: (heads,) scores of nothing next to those of the keys, in the softmax; None: no such
    """

    scaling: float
    cap: float = 0.0
    mask: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """The scores become weights by a causal softmax alone."""
        return not self.cap and self.mask is None and self.sinks is None

    def capped(self, scores: Tensor) -> Tensor:
        """The scores after the cap."""
        return torch.tanh(scores / self.cap) * self.cap if self.cap else scores

    def seen(self, first: int, last: int, device: torch.device) -> Tensor:
        """(last - first, last) bool: what the queries ``first`` .. ``last - 1`` see."""
        if self.mask is not None:
            return self.mask[first:last, :last]
        place = torch.arange(last, device=device)
        return place <= place[first:, None]

    def softmax(self, scores: Tensor) -> Tensor:
        """The softmax of (B, heads, T, keys), with the head's sink, which then is left out."""
        if self.sinks is None:
            return scores.softmax(-1)
        nothing = self.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, nothing), -1).softmax(-1)[..., :-1]


# (layer, q, k, v, scores): k, v (B, kv_heads, T, head_dim); (B, heads, T, head_dim) comes back.
Attention = Callable[[int, Tensor, Tensor, Tensor, Scores], Tensor]


class _Taps:
    """The taps of patches on one attention module, in the order of their coming."""

    def __init__(self, implementation: str) -> None:
        self.implementation = implementation
        self.before: list[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = []
        self.core: list[Callable[[Tensor, Tensor, Tensor, Scores], Tensor]] = []


_TAPS: "weakref.WeakKeyDictionary[nn.Module, _Taps]" = weakref.WeakKeyDictionary()


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls: taps, then the model's own or another."""
    taps = _TAPS[module]
    for before in taps.before:
        query, key, value = before(query, key, value)
    if taps.core:
        scores = Scores(
            scaling, float(options.get("softcap") or 0), _shared(attention_mask),
            options.get("s_aux"),
        )  # fmt: skip
        return taps.core[-1](query, key, value, scores).transpose(1, 2), None
    own = _own_attention(module, taps.implementation)
    mask = attention_mask
    if taps.implementation == "eager":
        mask = _added(attention_mask, query)
    return own(module, query, key, value, mask, scaling=scaling, **options)


def _own_attention(module: nn.Module, implementation: str) -> Callable[..., Any]:
    """The attention function of a name, as the module's own file of transformers knows it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = sys.modules[type(module).__module__].eager_attention_forward
    found: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
    return found


def _shared(mask: Tensor | None) -> Tensor | None:
    """(T, T) of the mask (B, 1, T, T) of sequences that are whole; CheckpointError: of others."""
    if mask is None:
        return None
    if not bool((mask == mask[:1, :1]).all()):
        raise CheckpointError("an attention of our own knows no padding")
    return mask[0, 0]


def _added(mask: Tensor | None, query: Tensor) -> Tensor:
    """Gives what eager attention adds to scores: 0 where ``mask`` is True, or the lowest number."""
    tokens = query.shape[2]
    if mask is None:
        mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=query.device).tril()
    lowest = torch.finfo(query.dtype).min
    return torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(
        ~mask, lowest
    )


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The attention modules in order of layer; CheckpointError: not a model of this kind."""
    found = [
        module
        for name, module in model.named_modules()
        if name.rsplit(".", 1)[-1] == "self_attn"
        and all(isinstance(getattr(module, each, None), nn.Linear) for each in ("k_proj", "v_proj"))
    ]
    if not found:
        raise CheckpointError("the model has no layers with self_attn.k_proj and self_attn.v_proj")
    return found


class Patch:
    """Changes to one model; a context manager.

    layers: the decoder layers
    attentions: their attention modules
    linears: every linear layer of the decoder layers by its name in the model, in order of the
        model, such as "model.layers.0.self_attn.q_proj"; the head is not among them

    Functions put on the same place run in the order in which they were put there. Each takes what
    the one before gave.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.attentions = attention_layers(model)
        names = {module: name for name, module in model.named_modules()}
        self.layer_names = [names[each].rpartition(".")[0] for each in self.attentions]
        self.layers = [model.get_submodule(name) for name in self.layer_names]
        self.linears: dict[str, nn.Linear] = {
            f"{prefix}.{name}": module
            for prefix, layer in zip(self.layer_names, self.layers, strict=True)
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear)
        }
        self._undo: list[Callable[[], None]] = []
        self._memories: dict[Function, _Memory] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The model as it was."""
        while self._undo:
            self._undo.pop()()

    def linears_of(self, layer: str) -> dict[str, nn.Linear]:
        """Those of ``linears`` that are of one decoder layer, by its name."""
        return {name: each for name, each in self.linears.items() if name.startswith(f"{layer}.")}

    # ---- parameters

    def parameter(self, module: nn.Module, name: str, value: Tensor) -> None:
        """Another value of a parameter ("weight", "bias") of this module alone.

        A parameter that is shared with another module, such as the embedding's with the head,
        changes here only. The old one is kept, so the model needs room for both.
        """
        old = module._parameters[name]
        if old is None or old.shape != value.shape:
            raise ValueError(f"{name} has no such shape: {tuple(value.shape)}")
        module._parameters[name] = nn.Parameter(
            value.detach().to(dtype=old.dtype, device=old.device), requires_grad=False
        )
        self._undo.append(lambda: module._parameters.__setitem__(name, old))

    def weight(self, name: str, value: Tensor) -> None:
        """Another weight (N, K) of a linear layer by its name."""
        self.parameter(self.linears[name], "weight", value)

    # ---- values

    def input(self, module: nn.Module, function: Function) -> None:
        """function(x) replaces the first argument of the module: for a linear layer (B, T, K).

        Some layers read the same tensor: q, k and v; gate and up. They call the function once if
        they were given the same function object.
        """
        memory = self._memory(function)

        def hook(
            _module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if args:
                return (memory(args[0]), *args[1:]), keywords
            return args, keywords | {_HIDDEN: memory(keywords[_HIDDEN])}

        self._hook(module.register_forward_pre_hook(hook, with_kwargs=True))

    def output(self, module: nn.Module, function: Function) -> None:
        """function(y) replaces what the module returns."""
        self._hook(module.register_forward_hook(lambda _module, _args, y: function(y)))

    def watch(
        self,
        module: nn.Module,
        before: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
        after: Callable[[Any], None] | None = None,
    ) -> None:
        """before(args, keywords) and after(result) see each call of the module, unchanged."""
        if before is not None:
            seen = before
            self._hook(
                module.register_forward_pre_hook(
                    lambda _module, args, keywords: seen(args, keywords), with_kwargs=True
                )
            )
        if after is not None:
            told = after
            self._hook(module.register_forward_hook(lambda _module, _args, y: told(y)))

    def kv(self, tap: KVTap, pre_rope: bool = False) -> None:
        """tap(layer, kv, x) replaces K (kv 0) and V (kv 1) of every layer.

        x: (B, T, kv_heads * head_dim) float32, all KV heads of every token; K after RoPE, or before
        it and after a norm of its own. The attention of all tokens, the newest included, reads what
        comes back.
        """
        for layer, module in enumerate(self.attentions):
            if pre_rope:
                self._before_rope(module, _bound(tap, layer, K))
                self.output(module.v_proj, _bound(tap, layer, V))  # type: ignore[arg-type]
            else:
                self._before(module, _on_heads(_bound(tap, layer, K), _bound(tap, layer, V)))

    def _before_rope(self, module: nn.Module, call: Function) -> None:
        norm: Any = getattr(module, "k_norm", None)
        if norm is None:
            self.output(module.k_proj, call)  # type: ignore[arg-type]
            return
        heads = module.k_proj.out_features // module.head_dim  # type: ignore[operator,union-attr]

        def function(y: Tensor) -> Tensor:
            if y.ndim == 3:  # all heads of a token in a row
                return call(y)
            if keeps_heads_first(norm):
                return _flat(call, y)
            return call(y.flatten(-2)).unflatten(-1, (heads, -1))

        self.output(norm, function)

    def query(self, tap: QueryTap) -> None:
        """tap(layer, q) replaces the queries after RoPE: (B, heads, T, head_dim)."""
        for layer, module in enumerate(self.attentions):
            self._before(module, _on_query(tap, layer))

    def attention(self, function: Attention) -> None:
        """function(layer, q, k, v, scores) computes the attention of every layer.

        Query head h reads KV head h // (heads / kv_heads). The latest patch computes; taps of all
        patches come before it.
        """
        for layer, module in enumerate(self.attentions):
            taps = self._taps(module)

            def core(q: Tensor, k: Tensor, v: Tensor, scores: Scores, layer: int = layer) -> Tensor:
                return function(layer, q, k, v, scores)

            taps.core.append(core)
            self._undo.append(lambda taps=taps, core=core: taps.core.remove(core))  # type: ignore[misc]

    def _hook(self, handle: Any) -> None:
        self._undo.append(handle.remove)

    def _memory(self, function: Function) -> Function:
        """One call of the same function for the same tensor, one after the other."""
        return self._memories.setdefault(function, _Memory(function))

    def _before(self, module: nn.Module, function: Callable[..., Any]) -> None:
        taps = self._taps(module)
        taps.before.append(function)
        self._undo.append(lambda: taps.before.remove(function))

    def _taps(self, module: nn.Module) -> _Taps:
        """The module's taps; its model calls ``_attend`` from now on, until this is undone."""
        if module not in _TAPS:
            _register()
            config: Any = module.config
            for each in self.attentions:
                _TAPS[each] = _Taps(config._attn_implementation)
            old, config._attn_implementation = config._attn_implementation, _ATTENTION

            def undo() -> None:
                config._attn_implementation = old
                for each in self.attentions:
                    _TAPS.pop(each, None)

            self._undo.append(undo)
        return _TAPS[module]


class _Memory:
    """function(x), remembered for the tensor that came last, as long as that tensor lives."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._x: weakref.ref[Tensor] | None = None
        self._version = -1
        self._y: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        known = self._x is not None and self._x() is x and self._version == x._version
        if self._y is not None and known and not torch.is_grad_enabled():
            return self._y
        y = self._function(x)
        self._x, self._version, self._y = weakref.ref(x, self._forget), x._version, y
        return y

    def _forget(self, dead: "weakref.ref[Tensor]") -> None:
        if self._x is dead:
            self._x = self._y = None


def _bound(tap: KVTap, layer: int, kv: int) -> Function:
    def call(x: Tensor) -> Tensor:
        y = tap(layer, kv, x)
        return x if y is None else y.to(x.dtype)

    return call


def _flat(call: Function, x: Tensor) -> Tensor:
    """A function of (B, T, heads * head_dim) on (B, heads, T, head_dim)."""
    batch, heads, tokens, head_dim = x.shape
    y = call(x.transpose(1, 2).reshape(batch, tokens, heads * head_dim))
    return y.reshape(batch, tokens, heads, head_dim).transpose(1, 2)


def _on_heads(on_k: Function, on_v: Function) -> Callable[..., Any]:
    return lambda q, k, v: (q, _flat(on_k, k), _flat(on_v, v))


def _on_query(tap: QueryTap, layer: int) -> Callable[..., Any]:
    return lambda q, k, v: (tap(layer, q), k, v)


def _register() -> None:
    """Our attention function, and the mask of scaled_dot_product_attention for it: a bool."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if _ATTENTION not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, sdpa_mask)
