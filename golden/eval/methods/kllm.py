"""KLLM as its hardware computes it (docs/kllm-layer.md), with a switch for each part of the flow.

golden.kllm.flow has the flow as a table: this method reads its sites, linear layers and switches.
The fast path is golden.eval.fake.kllm, the exact one (--bit-true) golden.kllm.attention.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from golden.checkpoint import next_token_loss
from golden.config import ConfigError
from golden.eval.calibration import CalibrationData
from golden.eval.fake.kllm import FakeCodebook, fake_attention, fake_tokens, half_words
from golden.eval.method import Method, Site, State
from golden.eval.sequential import fit_layer, fitted, stored
from golden.eval.walk import LayerWalk
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.format import INT_BITS
from golden.kllm import attention as exact
from golden.kllm.conditioning import offset, rotated
from golden.kllm.config import outlier_count
from golden.kllm.fit import least_squares
from golden.kllm.flow import GLU, LINEARS, SCORES, SITES, matmuls, readers
from golden.kllm.flow import sites as quantized_sites
from golden.kllm.format import ALL_PRODUCTS
from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.layer.weights import LayerWeights, layer_weights
from golden.kllm.norms import fold
from golden.kllm.quantize import (
    QuantizedWeight,
    Training,
    quantize_weight,
    train_activation_codebook,
    train_weight_codebook,
)
from golden.patch import K, Patch

__all__ = ["Kllm", "KllmS"]

FITS = ("largest", "squares", "feedback", "sequential")
_OFF = 16  # bits that leave a tensor as it is
_OUTLIER = 32  # stored bits of an outlier: FP16 value and 16 bits of position
_SCALE = 16
_SAMPLES = 1 << 16  # of a k-means
_OBSERVED = 1 << 31  # bytes of observations that are alive during calibration
_CACHED = ("k", "v")
_HESSIANS = ("feedback", "sequential")  # fits in the Hessians of quantized inputs
_CONDITIONS = ("center", "rotate")
# What the programs of golden.kllm.layer do.
_MACHINE_FLOW = {
    "outliers": "dynamic", "norm": "index", "integer_bits": 8, "cache_share": 0.0,
    "pre_rope": False,
}  # fmt: skip
# Sites before a norm, and the first linear layer after that norm.
_NORMED = {name: readers(name)[0] for name, site in SITES.items() if site.norm}
# Sites of whole tokens without a norm: a linear layer's input, or the output of that name's.
_PLAIN = [name for name, site in SITES.items() if not site.norm and not site.heads]


def _folded_fisher(fisher: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """Squared gradients of folded weights: those of the weights over their factors squared."""
    parts = [own.double() / each.cpu() ** 2 for own, each in zip(fisher, factors, strict=True)]
    return torch.cat(parts).nan_to_num(posinf=0)


def _on(device: torch.device, state: State) -> State:
    return {name: each.to(device) for name, each in state.items()}


def _modules(layer: nn.Module) -> dict[str, Any]:
    """The linear layers of a decoder layer by their short names."""
    return {name: layer.get_submodule(each.module) for name, each in LINEARS.items()}


def _norm(layer: nn.Module, name: str) -> Any:
    """The norm that precedes a linear layer."""
    return layer.get_submodule(str(LINEARS[name].norm))


def _epsilon(norm: Any) -> float:
    return float(norm.variance_epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kllm(Method):
    """``kllm-wNaM``: K-Means weights and activations, index-based operations, integer scores.

    Bits are 2..4, or 16 for weights, activations or caches that stay as they are.

    share: of outliers, both sides together
    outliers: ``dynamic`` (Orizuru, the k largest and k smallest of every token) or ``static``
        (kllm-s: offline thresholds, the larger of which is the scale)
    norm: ``index`` (hardware): the token before RMSNorm is quantized and gives its statistics, and
        gamma is in the weights; ``exact``: the same with the statistics of the token itself;
        ``unfolded``: the output of the norm is quantized, gamma included
    glu: ``index``, gate and up are quantized; ``exact``
    scores: ``direct``, q in FP16; ``index``, q quantized
    integer_bits: of the probabilities, 16 for none
    cache_bits: of K and V, 0 for the smaller of weight and activation bits
    cache_share: of outliers in a head's K and V
    pre_rope: K before RoPE
    center: K gets a constant vector after RoPE, its mean on the calibration text taken away
    rotate: V and o have a Hadamard matrix per head between them (golden.kllm.conditioning)
    fisher, weight_fisher: squared gradients as weights of the k-means
    fit: scales and indices of weights. ``largest``: the largest magnitude of a channel and the
        nearest centroids; ``squares``: scales and codebook of least squares, over all weights;
        ``feedback``: the same in the Hessian of the quantized inputs (golden.kllm.fit). Each column
        answers for the errors of those before. Scales and indices follow once more;
        ``sequential``: the same layer by layer, codebooks and Hessians of what the quantized layers
        before give (golden.eval.sequential)
    damping: of the Hessian's diagonal, as a share of its mean
    fuse: q, k, v and gate, up share a codebook
    antisymmetric: ``c[i] = -c[last - i]`` in codebooks of weights, K and V: half tables
    product: of the codebooks in the lanes, bit-true only
    tokens: of calibration
    """

    relative_time: ClassVar[float] = 1.9
    pattern: ClassVar[str] = r"kllm-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("kllm-w4a4", "kllm-w4a3")
    calibrated: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = 4
    activation_bits: int = 4
    share: float = 0.01
    outliers: str = "dynamic"
    norm: str = "index"
    glu: str = "index"
    scores: str = "direct"
    integer_bits: int = 8
    cache_bits: int = 0
    cache_share: float = 0.0
    pre_rope: bool = False
    center: bool = False
    rotate: bool = False
    fisher: bool = False
    weight_fisher: bool = True
    fit: str = "largest"
    damping: float = 0.01
    fuse: bool = True
    antisymmetric: bool = False
    product: str = "rounded"
    tokens: int = 512

    def __post_init__(self) -> None:
        for field in ("weight_bits", "activation_bits"):
            if getattr(self, field) != _OFF:
                self._check_range(field, 2, 4)
        if self.cache_bits not in (0, _OFF):
            self._check_range("cache_bits", 2, 4)
        self._check_real("share", 0.0, 0.5)
        self._check_real("cache_share", 0.0, 0.5)
        self._check_choice("outliers", ("dynamic", "static"))
        self._check_choice("norm", ("index", "exact", "unfolded"))
        self._check_choice("glu", GLU)
        self._check_choice("scores", SCORES)
        self._check_range("integer_bits", 2, _OFF)
        for field in (
            "pre_rope", "center", "rotate", "fisher", "weight_fisher", "fuse",
            "antisymmetric",
        ):  # fmt: skip
            self._check_bool(field)
        if self.center and self.pre_rope:
            self._refuse("center", "false with pre_rope=true, as RoPE turns a constant")
        self._check_choice("fit", FITS)
        self._check_real("damping", 1e-6, 1.0)
        if self.fit != "largest" and self.antisymmetric:
            self._refuse("antisymmetric", f"false with fit={self.fit}")
        if self.fit in _HESSIANS:
            if self.activation_bits == _OFF:
                self._refuse("fit", "largest or squares without quantized activations")
            if self.norm == "exact":
                self._refuse("fit", "largest or squares with norm=exact")
        if self.fit == "sequential":
            if _OFF in (self.weight_bits, self.kept_bits):
                self._refuse("fit", "another without quantized weights, K and V")
            if self.fisher or self.pre_rope:
                self._refuse("fit", "another with fisher=true or pre_rope=true")
        self._check_choice("product", ALL_PRODUCTS)
        self._check_range("tokens", 2, 1 << 20)

    def beside(self, others: Sequence[Method]) -> Method:
        """K and V are left to another method for them, unless ``cache_bits`` is given."""
        taken = self.cache_bits == 0 and any(each.caches for each in others)
        return dataclasses.replace(self, cache_bits=_OFF) if taken else self

    @property
    def kept_bits(self) -> int:
        """Bits of an index in the caches."""
        return self.cache_bits or min(self.weight_bits, self.activation_bits)

    def sites(self) -> dict[str, int]:
        """Quantized activations and the bits of each."""
        taken = quantized_sites(glu=self.glu, scores=self.scores)
        bits = dict.fromkeys(taken, self.activation_bits)
        bits |= dict.fromkeys(_CACHED, self.kept_bits)
        return {name: each for name, each in bits.items() if each != _OFF}

    # ---- offline

    def calibration_fields(self) -> dict[str, object]:
        """All but what only the run depends on."""
        online = ("integer_bits", "product")
        return {name: value for name, value in self.describe().items() if name not in online}

    def calibrate(self, data: CalibrationData) -> State:
        """Codebooks as FP16 words, "0.x", "0.weight.qkv" and so on; thresholds, "0.x.thresholds".

        Those of weights from the weights alone (and their Fisher information), of activations from
        ``tokens`` tokens of the windows. With another ``fit`` also "0.index.qkv" (N, K) uint8 and
        "0.scale.qkv" (N,) FP16 words.
        """
        state = self._offsets(data)
        sites = self.sites()
        with Site(data.model) as site:
            self._install_conditioning(site, state)
            if self.fit == "sequential":
                return self._sequential(data, state)
            if self.weight_bits != _OFF and self.fit == "largest":
                state |= self._weight_codebooks(data)
            if sites:
                state |= self._activation_codebooks(data, sites)
            if self.weight_bits != _OFF and self.fit != "largest":
                state |= self._fitted_weights(data, state)  # for these activations
        return state

    def _offsets(self, data: CalibrationData) -> State:
        """FP16 words (kv_heads, size) of every layer, "0.k.offset"."""
        if not self.center:
            return {}
        with Patch(data.model) as patch:
            size = int(patch.attentions[0].head_dim)  # type: ignore[arg-type]
            outputs = [_modules(each)["k"].out_features for each in patch.layers]
        seen = self._observe(data, range(len(outputs)), ("k",))
        return {
            f"{i}.k.offset": offset(seen[f"{i}.k"].reshape(-1, length // size, size))
            for i, length in enumerate(outputs)
        }

    def _install_conditioning(self, site: Site, state: State) -> None:
        """Weights with the rotation in them; K with its offset."""
        names = {module: name for name, module in site.linears.items()}
        for i, layer in enumerate(site.layers if self.rotate else ()):
            size = int(site.attentions[i].head_dim)  # type: ignore[arg-type]
            v, o = (_modules(layer)[name] for name in "vo")
            values = v.weight.detach()
            if v.bias is not None:
                values = torch.cat((values, v.bias.detach()[:, None]), 1)
            values, output = rotated(values, o.weight.detach(), size)
            site.weight(names[v], values[:, : v.in_features])
            site.weight(names[o], output)
            if v.bias is not None:
                site.parameter(v, "bias", values[:, v.in_features])
        if self.center:
            constants = [
                float_from_bits(state[f"{i}.k.offset"].long()).flatten().half()
                for i in range(len(site.layers))
            ]

            def add(layer: int, kv: int, x: Tensor) -> Tensor | None:
                """BINARY ADD: the FP16 sum of K, rounded to FP16, and the constant."""
                constant = constants[layer].to(x.device)
                return (x.half() + constant).float() if kv == K else None

            site.kv(add)

    def _key(self, what: str, *fields: str) -> str:
        known = {name: getattr(self, name) for name in fields}
        return f"kllm-{what}-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]}"

    def _weight_fisher(self, data: CalibrationData) -> dict[str, Tensor]:
        """Of the weights that ``_install_conditioning`` has put in the model; {}: unwanted."""
        if not self.weight_fisher:
            return {}
        changed = [name for name in _CONDITIONS if getattr(self, name)]
        return data.weight_fisher(changed="-".join(changed))

    def _weight_codebooks(self, data: CalibrationData) -> State:
        key = self._key(
            "weights", "weight_bits", "weight_fisher", "fuse", "norm", "antisymmetric", *_CONDITIONS
        )
        fisher = self._weight_fisher(data)
        state: State = {}
        with Patch(data.model) as patch:
            layers, names = patch.layers, {module: name for name, module in patch.linears.items()}
        for i, layer in data.track(list(enumerate(layers)), "codebooks of weights"):

            def make(i: int = i, layer: nn.Module = layer) -> State:
                made = {}
                for group, members in self.groups(layer).items():
                    weight, factors = self.joined(layer, members)
                    squares = None
                    if self.weight_fisher:
                        own = [fisher[names[_modules(layer)[name]]] for name in members]
                        squares = _folded_fisher(own, factors).to(weight.device)
                    made[f"{i}.weight.{group}"] = train_weight_codebook(
                        weight, self.weight_bits, squares, data.seed,
                        Training(_SAMPLES, self.antisymmetric),
                    ).cpu()
                return made

            state |= data.steps.once(f"{key}-{i}", make)
        return state

    def _fitted_weights(self, data: CalibrationData, state: State) -> State:
        """Codebook, scales and indices of each group of linear layers, fitted together.

        ConfigError: fewer tokens than a Hessian has columns, so that it is singular.
        """
        with Patch(data.model) as patch:
            layers = patch.layers
        if self.fit == "feedback":
            self._check_tokens(data, layers[0])
        state = _on(data.windows[0].device, state)
        hessians = functools.cache(lambda: self._hessians(data, state))  # for layers not yet kept
        key = self._key("fit", *self.calibration_fields())
        made: State = {}
        for i, layer in data.track(list(enumerate(layers)), "weights"):

            def make(i: int = i, layer: nn.Module = layer) -> State:
                own = hessians() if self.fit == "feedback" else None
                return self._fitted_layer(data, i, layer, own)

            made |= data.steps.once(f"{key}-{i}", make)
        return made

    def _fitted_layer(
        self, data: CalibrationData, i: int, layer: nn.Module, hessians: State | None = None
    ) -> State:
        """Of one layer; in the Hessians, or by the diagonal of Fisher information."""
        fisher = self._weight_fisher(data) if hessians is None else {}
        names = {module: name for name, module in data.linears.items()}
        made: State = {}
        for group, members in self.groups(layer).items():
            weight, factors = self.joined(layer, members)
            if hessians is not None:
                hessian = hessians[f"{i}.{LINEARS[members[0]].site}"]
                found = fitted(self, (i, group), weight, hessian, data.seed)
            else:
                importance = None
                if fisher:
                    own = [fisher[names[_modules(layer)[name]]] for name in members]
                    importance = _folded_fisher(own, factors).to(weight.device)
                found = least_squares(weight, self.weight_bits, importance, seed=data.seed)
            made |= stored(found, i, group)
        return made

    def _check_tokens(self, data: CalibrationData, layer: nn.Module) -> None:
        """ConfigError: fewer tokens than a Hessian has columns, so that it is singular."""
        tokens = sum(map(len, data.windows))
        linears = _modules(layer)
        widest = max(linears, key=lambda name: int(linears[name].in_features))
        inputs = linears[widest].in_features
        if tokens < inputs:
            raise ConfigError(
                f"fit={self.fit} must have {inputs} tokens of calibration or more, as many as "
                f"{widest} has inputs, not {tokens}"
            )

    def _sequential(self, data: CalibrationData, state: State) -> State:
        """``state`` with codebooks and weights, layer by layer after those quantized before."""
        walk = LayerWalk(data.model, data.windows)
        self._check_tokens(data, walk.layers[0])
        key = self._key("sequential", *self.calibration_fields())
        device = walk.hidden[0].device
        made = _on(device, state)
        for i in data.track(range(len(walk.layers)), "layers"):
            fit = functools.partial(fit_layer, self, walk, i, dict(made), data)
            made |= _on(device, data.steps.once(f"{key}-{i}", fit))
            with Site(data.model) as site:
                self._install_weights(site, made, i)
                self._install_activations(site, made, i)
                self.install_attention(site, made)
                walk.hidden = walk.run(i, walk.hidden)
        return made

    def _hessians(self, data: CalibrationData, state: State) -> dict[str, Tensor]:
        """Sums of x x^T of what the matmuls read, "LAYER.SITE" (K, K) float64.

        The inputs are quantized, as the hardware has them, and the weights are not. A norm's factor
        is in the weights, so it is taken out of x; a factor of 0 hides its channel.
        """
        total: dict[str, Tensor] = {}
        with Site(data.model) as site:
            for i in range(len(site.layers)):
                self._install_activations(site, state, i)
            self.install_attention(site, state)
            for i, layer in enumerate(site.layers):
                for where in {linear.site for linear in LINEARS.values()}:
                    first = readers(where)[0]

                    def add(
                        x: Tensor, key: str = f"{i}.{where}", layer: nn.Module = layer,
                        first: str = first,
                    ) -> Tensor:  # fmt: skip
                        rows = self.unscaled(layer, first, x.flatten(0, -2))
                        product = (rows.t() @ rows).double()
                        total[key] = total[key] + product if key in total else product
                        return x

                    site.input(_modules(layer)[first], add)
            for ids in data.track(data.windows, "Hessians"):
                data.run(ids)
        return total

    def unscaled(self, layer: nn.Module, name: str, x: Tensor) -> Tensor:
        """A linear layer's input without the norm's factor, if the weights have that."""
        if LINEARS[name].norm is None or self.norm == "unfolded":
            return x
        factor = _norm(layer, name).weight.detach().to(x.device)
        return torch.where(factor == 0, 0, x / torch.where(factor == 0, 1, factor))

    def groups(self, layer: nn.Module) -> dict[str, tuple[str, ...]]:
        """Linear layers that share a matmul, as golden.kllm.flow fuses them."""
        return matmuls(self.fuse, _modules(layer)["gate"].out_features)

    def joined(self, layer: nn.Module, members: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
        """``_folded`` weights of a matmul as one, and the factor of each."""
        weights, factors = zip(*(self._folded(layer, name) for name in members), strict=True)
        return torch.cat(weights), list(factors)

    def _folded(self, layer: nn.Module, name: str) -> tuple[Tensor, Tensor]:
        """(weight (N, K) as it is quantized, the factor (1, K) that is in it), float64."""
        weight = _modules(layer)[name].weight.detach().double()
        factor = torch.ones_like(weight[:1])
        if LINEARS[name].norm is not None and self.norm != "unfolded":
            factor = _norm(layer, name).weight.detach().double()[None]
            weight = fold(weight.t(), factor[0]).weight.t()
        if name == "q":
            scaling = self._scaling(layer)
            weight, factor = weight * scaling, factor * scaling
        return weight, factor

    @staticmethod
    def _scaling(layer: nn.Module) -> float:
        return float(layer.get_submodule("self_attn").scaling)  # type: ignore[arg-type]

    def _activation_codebooks(self, data: CalibrationData, sites: dict[str, int]) -> State:
        offline = (
            "activation_bits", "cache_bits", "weight_bits", "share", "outliers", "norm", "glu",
            "scores", "cache_share", "pre_rope", "fisher", "tokens", "antisymmetric", *_CONDITIONS,
        )  # fmt: skip
        key = self._key("activations", *offline)
        with Patch(data.model) as patch:
            layers = patch.layers
        widths = [module.out_features for module in _modules(layers[0]).values()]
        floats = 4 * sum(widths) * (2 if self.fisher else 1)  # of a token and layer, about
        alive = self.tokens + max(map(len, data.windows))
        step = max(1, _OBSERVED // (4 * floats * alive))
        state: State = {}
        for first in data.track(list(range(0, len(layers), step)), "codebooks of activations"):
            some = range(first, min(first + step, len(layers)))

            def make(some: range = some) -> State:
                seen = self._observe(data, some, sites)
                return {
                    name: value
                    for layer in some
                    for site, bits in sites.items()
                    for name, value in self.train(seen, f"{layer}.{site}", bits, data).items()
                }

            state |= data.steps.once(f"{key}-{first}", make)
        return state

    def _observe(self, data: CalibrationData, layers: range, sites: Iterable[str]) -> State:
        """What the sites of some layers hold on ``tokens`` tokens, "LAYER.SITE" (T, K) float32.

        With ``fisher`` also "LAYER.SITE.gradient". Heads of q, k, v are tokens of their own.
        """
        wanted = {f"{layer}.{site}" for layer in layers for site in sites}
        share = -(-self.tokens // len(data.windows))
        parts: dict[str, list[Tensor]] = {}
        for i, ids in enumerate(data.windows):
            pick = torch.randperm(len(ids), generator=data.generator(i))[:share].sort().values
            for key, x in self._observe_window(data, ids, layers, wanted).items():
                parts.setdefault(key, []).append(x[pick].cpu())
        return {key: torch.cat(each).flatten(0, -2) for key, each in parts.items()}

    def _observe_window(
        self, data: CalibrationData, ids: Tensor, layers: range, wanted: Collection[str]
    ) -> State:
        """``_observe`` for all tokens of one window: (T, vectors of a token, K)."""
        seen: dict[str, Tensor] = {}

        def tap(key: str) -> Callable[[Tensor], Tensor]:
            def record(x: Tensor) -> Tensor:
                if key not in wanted:
                    return x
                y = x.view_as(x)  # with a gradient of its own: not that of the residual
                if self.fisher and not y.requires_grad:
                    y.requires_grad_()
                seen[key] = y
                return y

            return record

        with Patch(data.model) as patch, torch.set_grad_enabled(self.fisher):
            for layer in layers:
                for where in (*_NORMED, *_PLAIN):
                    self.tap_site(patch, patch.layers[layer], where, tap(f"{layer}.{where}"))
            patch.kv(lambda layer, kv, x: tap(f"{layer}.{'kv'[kv]}")(x), self.pre_rope)
            patch.query(lambda layer, q: tap(f"{layer}.q")(q))
            if not self.fisher:
                data.run(ids)
                slopes: tuple[Tensor, ...] = ()
            else:
                logits = data.model(ids[None], use_cache=False).logits[0]
                loss = next_token_loss(logits, ids)
                slopes = torch.autograd.grad(loss, list(seen.values()))
            found = {key: self._rows(patch, key, x.detach()) for key, x in seen.items()}
            for key, slope in zip(seen, slopes, strict=False):
                found[f"{key}.gradient"] = self._rows(patch, key, slope)
        return found

    def tap_site(
        self, patch: Patch, layer: nn.Module, site: str, tap: Callable[[Tensor], Any]
    ) -> None:
        """Records a site of whole tokens where ``install`` will quantize it."""
        linear = _modules(layer)
        if site in _NORMED:
            put = patch.input if self.norm == "index" else patch.output
            put(_norm(layer, _NORMED[site]), tap)
        elif readers(site):
            patch.input(linear[readers(site)[0]], tap)
        else:
            patch.output(linear[site], tap)

    def _rows(self, patch: Patch, key: str, x: Tensor) -> Tensor:
        """(T, vectors of a token, K) of what a tap saw in one window."""
        layer, site = key.split(".")
        if site == "q":
            return x[0].transpose(0, 1)
        if site in _CACHED:
            return x[0].unflatten(-1, (-1, int(patch.attentions[int(layer)].head_dim)))  # type: ignore[arg-type]
        return x[0][:, None]

    def train(self, seen: State, key: str, bits: int, data: CalibrationData) -> State:
        """The codebook of one site, and its thresholds if it has static ones."""
        layer, site = key.split(".")
        x, gradient = seen[key], seen.get(f"{key}.gradient")
        if self.norm == "exact" and SITES[site].norm:
            # Before gamma, which is in the weights; a gamma of 0 hides its channel.
            with Patch(data.model) as patch:
                module = patch.layers[int(layer)]
            gamma = _norm(module, _NORMED[site]).weight.detach().cpu()
            x = torch.where(gamma == 0, 0, x / gamma)
            gradient = None if gradient is None else gradient * gamma
        fisher = None if gradient is None else gradient.double() ** 2
        thresholds = None
        state: State = {}
        share = self._share(site)
        if self.outliers == "static" and SITES[site].outliers:
            thresholds = static_thresholds(x.half(), share)
            state[f"{key}.thresholds"] = torch.tensor(thresholds)
        state[key] = train_activation_codebook(
            half_words(x), bits, fisher, share, data.seed, thresholds,
            Training(_SAMPLES, self.antisymmetric and site in _CACHED),
        )  # fmt: skip
        return state

    def _share(self, site: str) -> float:
        """Outliers on each side."""
        if SITES[site].outliers:
            return self.share / 2
        return self.cache_share / 2 if site in _CACHED else 0.0

    # ---- online

    def install(self, site: Site, state: State) -> None:
        self._install_conditioning(site, state)
        for i in range(len(site.layers)):
            self._install_weights(site, state, i)
            if self.activation_bits != _OFF:
                self._install_activations(site, state, i)
        self.install_attention(site, state)

    def quantized(
        self, state: State, i: int, layer: nn.Module, only: Collection[str] = LINEARS
    ) -> dict[str, QuantizedWeight]:
        """Linear layers' weights as they are stored in memory, q with the scaling in it."""
        made = {}
        for group, members in self.groups(layer).items():
            if not set(members) & set(only):
                continue
            codebook = state[f"{i}.weight.{group}"].long()
            if f"{i}.index.{group}" not in state:
                for name in filter(only.__contains__, members):
                    made[name] = quantize_weight(self._folded(layer, name)[0], codebook=codebook)
                continue
            rows = [_modules(layer)[name].out_features for name in members]
            index = state[f"{i}.index.{group}"].split(rows)
            scale = state[f"{i}.scale.{group}"].long().split(rows)
            for name, own, words in zip(members, index, scale, strict=True):
                if name in only:
                    made[name] = QuantizedWeight(own.t().contiguous(), words, codebook)
        return made

    def layer(self, model: nn.Module, state: State, i: int) -> tuple[LayerWeights, QuantizedLayer]:
        """Layer ``i`` with its real weights, conditioned, and as golden.kllm.layer compiles it.

        On the machine it does what ``install`` computes. ConfigError: there is no such flow.
        """
        for field, wanted in _MACHINE_FLOW.items():
            if getattr(self, field) != wanted:
                self._refuse(field, f"{wanted} for a layer of the accelerator")
        if _OFF in (self.weight_bits, self.activation_bits, self.kept_bits):
            raise ConfigError("weights, activations, K and V must be quantized for the accelerator")
        if self.kept_bits != self.activation_bits:
            self._refuse("cache_bits", "activation_bits for a layer of the accelerator")
        with Site(model) as site:
            layer = site.layers[i]
            self._install_conditioning(site, state)
            real = layer_weights(layer, model.config)
            weights = self.quantized(state, i, layer)
        weight = {}
        for group, members in self.groups(layer).items():
            first = weights[members[0]]
            index = torch.cat([weights[name].index for name in members], 1)
            scale = torch.cat([weights[name].scale for name in members])
            weight[group] = QuantizedWeight(index, scale, first.codebook)
        codebook = {name: state[f"{i}.{name}"].long() for name in self.sites()}
        unused = {name: codebook["k"] for name in SITES if name not in codebook}
        options = LayerOptions(
            fuse=self.fuse, scores=self.scores, glu=self.glu, share=self.share / 2,
            center=self.center,
        )  # fmt: skip
        found = state[f"{i}.k.offset"].long() if self.center else None
        return real, QuantizedLayer(real.shape, options, weight, codebook | unused, found)

    def install_group(self, site: Site, state: State, i: int, group: str) -> None:
        """Weights of a matmul, where the norm before it has its factor still."""
        layer = site.layers[i]
        linear = _modules(layer)
        names = {module: name for name, module in site.linears.items()}
        members = self.groups(layer)[group]
        for name, each in self.quantized(state, i, layer, members).items():
            weight = self.unscaled(layer, name, each.dequantize().t())
            site.weight(names[linear[name]], weight / (self._scaling(layer) if name == "q" else 1))

    def _install_weights(self, site: Site, state: State, i: int) -> None:
        layer = site.layers[i]
        linear = _modules(layer)
        names = {module: name for name, module in site.linears.items()}
        if self.weight_bits == _OFF:
            weights = {name: self._folded(layer, name)[0] for name in linear}
        else:
            quantized = self.quantized(state, i, layer)
            weights = {name: each.dequantize().t() for name, each in quantized.items()}
        weights["q"] = weights["q"] / self._scaling(layer)
        for name, weight in weights.items():
            site.weight(names[linear[name]], weight)
        if self.norm != "unfolded":
            for name in _NORMED.values():
                norm = _norm(layer, name)
                site.parameter(norm, "weight", torch.ones_like(norm.weight))
        if self.weight_bits == _OFF:
            return
        for members in self.groups(layer).values():
            sizes = {name: weights[name].numel() for name in members}
            codebook = 16 * (1 << self.weight_bits) / sum(sizes.values())
            for name, elements in sizes.items():
                bits = self.weight_bits + _SCALE / weights[name].shape[1] + codebook
                site.bits.add("weights", names[linear[name]], elements, bits)

    def _quantizer(
        self, site: Site, state: State, i: int, where: str, length: int, counted: Iterable[str] = ()
    ) -> Callable[[Tensor], Tensor]:
        """x to what its tokens have become; bits are counted for some linear layers."""
        codebook = FakeCodebook.of(state[f"{i}.{where}"])
        share = self._share(where)
        if self.outliers == "static":
            thresholds = tuple(state[f"{i}.{where}.thresholds"].tolist())
            counters = [site.bits.adder("activations", name) for name in counted]

            def static(x: Tensor) -> Tensor:
                found = fake_tokens(x, codebook, thresholds=thresholds)  # type: ignore[arg-type]
                f = float(found.outliers) / x.numel()
                for count in counters:
                    count(x.numel(), codebook.bits + _OUTLIER * f)
                return found.value

            return static
        k = outlier_count(length, share) if share else 0
        for name in counted:
            bits = codebook.bits + (_SCALE + 2 * k * _OUTLIER) / length
            site.bits.add("activations", name, length, bits)
        return lambda x: fake_tokens(x, codebook, k).value

    def _install_activations(self, site: Site, state: State, i: int) -> None:
        for where in (*_NORMED, *filter(self.sites().get, _PLAIN)):
            self.install_activation(site, state, i, where)

    def install_activation(self, site: Site, state: State, i: int, where: str) -> None:
        """A site of whole tokens."""
        layer = site.layers[i]
        linear = _modules(layer)
        if not readers(where):  # SiLU of s * c and the product follow in the model
            length = linear[where].out_features
            site.output(linear[where], self._quantizer(site, state, i, where, length))
            return
        names = {module: name for name, module in site.linears.items()}
        counted = [names[linear[name]] for name in readers(where)]
        length = linear[readers(where)[0]].in_features
        quantize = self._quantizer(site, state, i, where, length, counted)
        if where in _NORMED and self.norm == "index":
            site.input(_norm(layer, _NORMED[where]), quantize)
            return
        for name in readers(where):
            site.input(linear[name], quantize)

    def install_attention(self, site: Site, state: State) -> None:
        cached = self.kept_bits != _OFF
        head_dim = int(site.attentions[0].head_dim)  # type: ignore[arg-type]
        share = self._share("k")
        k_kept = outlier_count(head_dim, share) if share else 0
        books: dict[str, FakeCodebook] = {}
        for i in range(len(site.layers)):
            for where in (name for name, each in SITES.items() if each.heads):
                if f"{i}.{where}" in state:
                    books[f"{i}.{where}"] = FakeCodebook.of(state[f"{i}.{where}"])
            if cached:
                for kv in (0, 1):
                    bits = self.kept_bits + (_SCALE + 2 * k_kept * _OUTLIER) / head_dim
                    site.bits.add("kv", f"{i}.{kv}", 1, bits)
        if cached and self.pre_rope:

            def before_rope(layer: int, kv: int, x: Tensor) -> Tensor | None:
                if kv != K:
                    return None
                vectors = x.unflatten(-1, (-1, head_dim))
                return fake_tokens(vectors, books[f"{layer}.k"], k_kept).value.flatten(-2)

            site.kv(before_rope, pre_rope=True)
        if not cached and self.integer_bits == _OFF and self.scores == "direct":
            return

        def core(layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
            real = q, k, v
            q = (q * scaling).half().float()
            query = books[f"{layer}.q"] if "q" in self.sites() else None
            if cached:
                if not self.pre_rope:
                    k = fake_tokens(k, books[f"{layer}.k"], k_kept).value
                made = fake_tokens(v, books[f"{layer}.v"], k_kept)
                v, scale = made.value, made.scale
            else:  # another method's cache, or none: the magnitude of what is there
                scale = v.abs().amax(-1, keepdim=True)
            y = fake_attention(q, k, v, scale, self.integer_bits, query)
            name = f"{site.layer_names[layer]}.self_attn"
            if name in site.exact and self._exact_attention:
                fast, y = y, self._attend(state, layer, *real, scaling)
                site.compare(name, fast, y)
            return y

        site.attention(core)

    # ---- bit-true

    @property
    def _exact_attention(self) -> bool:
        """The hardware has this flow: caches without outliers, K after RoPE, 4 or 8 bits."""
        return (
            self.kept_bits != _OFF
            and not self.cache_share
            and not self.pre_rope
            and self.integer_bits in INT_BITS
            and (self.scores == "direct" or self.activation_bits != _OFF)
        )

    def _attend(
        self, state: State, i: int, q: Tensor, k: Tensor, v: Tensor, scaling: float
    ) -> Tensor:
        books = exact.AttentionBooks(
            state[f"{i}.k"].long(), state[f"{i}.v"].long(),
            state[f"{i}.q"].long() if self.scores == "index" else None,
            min(self.activation_bits, 4),
        )  # fmt: skip
        made = []
        for each_q, each_k, each_v in zip(q * scaling, k, v, strict=True):
            words = exact.attention(
                bits_from_float(each_q), bits_from_float(each_k), bits_from_float(each_v),
                books, self.integer_bits, self.product,
            )  # fmt: skip
            made.append(float_from_bits(words).float())
        return torch.stack(made)

    def bit_true(self, site: Site, state: State, name: str) -> Callable[[Tensor], Tensor] | None:
        """The matmul with QUANTIZE before it; QUANTIZE also follows gate and up with glu=index."""
        if _OFF in (self.weight_bits, self.activation_bits):
            return None
        i = next(i for i, each in enumerate(site.layer_names) if name.startswith(f"{each}."))
        layer = site.layers[i]
        short = next(s for s, module in _modules(layer).items() if module is site.linears[name])
        where = LINEARS[short].site
        with Site(site.model) as changed:
            self._install_conditioning(changed, state)
            weight = self.quantized(state, i, layer, (short,))[short]
        codebook = state[f"{i}.{where}"].long()
        epsilon: float | None = None
        held: list[Tensor] = []
        if LINEARS[short].norm is not None and self.norm == "index":
            norm = _norm(layer, short)
            epsilon = _epsilon(norm)

            def hold(x: Tensor) -> Tensor:
                held[:] = [x]
                return x

            site.input(norm, hold)
        scaling = self._scaling(layer) if short == "q" else 1.0

        def function(x: Tensor) -> Tensor:
            words = bits_from_float(held.pop().flatten(0, -2) if held else x)
            tokens = self._exact_tokens(state, i, where, words, epsilon)
            made = exact.linear(tokens, codebook, weight, self.product, epsilon is not None)
            y = made.y
            if self.glu == "index" and short in ("gate", "up"):
                quantized = self._exact_tokens(state, i, short, y)
                return quantized.value(state[f"{i}.{short}"].long()).float()
            return (float_from_bits(y) / scaling).float()

        return function

    def _exact_tokens(
        self, state: State, i: int, where: str, words: Tensor, epsilon: float | None = None
    ) -> exact.SlotTokens:
        thresholds = None
        if self.outliers == "static":
            upper, lower = bits_from_float(state[f"{i}.{where}.thresholds"].double()).tolist()
            thresholds = upper, lower
        codebook = state[f"{i}.{where}"].long()
        return exact.quantize(words, codebook, self._share(where), thresholds, epsilon)


def static_thresholds(x: Tensor, share: float) -> tuple[float, float]:
    """(upper, lower) of float16 values: ``share`` of all of them beyond each, fewer if equal."""
    ordered = x.flatten().float().sort().values
    beyond = round(share * len(ordered))
    return float(ordered[len(ordered) - 1 - beyond]), float(ordered[beyond])


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmS(Kllm):
    """``kllm-s-wNaM``: KLLM with offline outlier thresholds, Orizuru bypassed."""

    pattern: ClassVar[str] = r"kllm-s-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("kllm-s-w4a4", "kllm-s-w4a3")

    outliers: str = "static"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("outliers", ("static",))
