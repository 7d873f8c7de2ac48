"""KLLM as the paper has it, with a switch for each part of the flow.

The accelerator has linear layers and functions of it, and K and V of Oaken's (docs/kllm-layer.md).

golden.kllm.flow has the flow as a table: this method reads its sites, linear layers and switches.
The fast path is golden.llm.eval.fake.kllm, the exact one (--bit-true) golden.kllm.attention.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from golden.config import ConfigError, bounded, choice, flag, real
from golden.fp16.ops import add, bits_from_float, float_from_bits
from golden.index.format import INT_BITS
from golden.kllm import attention as exact
from golden.kllm.conditioning import rotated
from golden.kllm.config import outlier_count
from golden.kllm.flow import GLU, SCORES, SITES, matmuls, readers
from golden.kllm.flow import sites as quantized_sites
from golden.kllm.format import ALL_PRODUCTS, FIXED_PRODUCTS
from golden.kllm.layer.layout import used_sites
from golden.kllm.layer.quantized import (
    QuantizedLayer,
    constant_vectors,
    multiplied,
    norm_factors,
    router_images,
)
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.layer.weights import LayerWeights, layer_weights, residual_factor
from golden.kllm.norms import fold
from golden.kllm.quantize import (
    QuantizedWeight,
    quantize_weight,
)
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.fake.kllm import FakeCodebook, FakeTokens, fake_attention, fake_tokens
from golden.llm.eval.fake.products import Inputs, ProductError, integer_centroids
from golden.llm.eval.kllm.activations import activation_codebooks, offsets
from golden.llm.eval.kllm.places import (
    CACHED,
    NORMED,
    OFF,
    PLAIN,
    entry_of,
    expert_of,
    modules,
    norm_before,
    norm_of,
    readers_of,
    router_of,
    site_of,
    vectors_of,
)
from golden.llm.eval.kllm.sequential import fit_layers
from golden.llm.eval.kllm.tuning import tune
from golden.llm.eval.kllm.weights import fitted_weights, weight_codebooks
from golden.llm.eval.method import Method, Site, State
from golden.llm.patch import K, Patch, Scores
from golden.llm.structure import block_of, kind_of

FITS = ("largest", "squares", "feedback", "sequential")
_OUTLIER = 32  # stored bits of an outlier: FP16 value and 16 bits of position
_SCALE = 16
_HESSIANS = ("feedback", "sequential")  # fits in the Hessians of quantized inputs
_HESSIAN_TOKENS = 10240
# What the programs of golden.kllm.layer do: K and V are another method's.
_MACHINE_FLOW = {
    "outliers": "dynamic", "norm": "index", "cache_bits": OFF, "integer_bits": OFF,
    "scores": "direct", "cache_share": 0.0, "pre_rope": False,
}  # fmt: skip


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
    fisher, weight_fisher: squared gradients as weights of the k-means; a fit in Hessians has no
        use for those of weights
    fit: scales and indices of weights. ``largest``: the largest magnitude of a channel and the
        nearest centroids; ``squares``: scales and codebook of least squares, over all weights;
        ``feedback``: the same in the Hessian of the quantized inputs (golden.kllm.fit). Each column
        answers for the errors of those before. Scales and indices follow once more;
        ``sequential``: the same layer by layer, codebooks and Hessians of what the quantized layers
        before give (golden.llm.eval.kllm.sequential)
    damping: of the Hessian's diagonal, as a share of its mean
    steps: of at most 512 tokens, in which scales and codebooks learn to give what the unchanged
        model gives (golden.llm.eval.kllm.tuning); 0 for none
    fuse: q, k, v and gate, up share a codebook
    antisymmetric: ``c[i] = -c[last - i]`` in codebooks of weights, K and V: half tables
    product: words of products in the lanes. The fast path has those of fixed point in linear layers
        and of V (golden.llm.eval.fake.products); what ``rounded`` rounds it leaves out, and with
        ``scores=index`` the words of scores
    tokens: of calibration
    """

    relative_time: ClassVar[float] = 1.9
    pattern: ClassVar[str] = r"kllm-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("kllm-w4a4", "kllm-w4a3")
    calibrated: ClassVar[bool] = True
    folds: ClassVar[bool] = True

    weight_bits: int = 4
    activation_bits: int = 4
    share: float = real(0.01, 0.0, 0.5)
    outliers: str = choice("dynamic", ("dynamic", "static"))
    norm: str = choice("index", ("index", "exact", "unfolded"))
    glu: str = choice("exact", GLU)
    scores: str = choice("direct", SCORES)
    integer_bits: int = bounded(8, 2, OFF)
    cache_bits: int = 0
    cache_share: float = real(0.0, 0.0, 0.5)
    pre_rope: bool = flag(False)
    center: bool = flag(True)
    rotate: bool = flag(True)
    fisher: bool = flag(False)
    weight_fisher: bool = flag(True)
    fit: str = choice("sequential", FITS)
    damping: float = real(0.01, 1e-6, 1.0)
    steps: int = bounded(40, 0, 1 << 20)
    fuse: bool = flag(True)
    antisymmetric: bool = flag(False)
    product: str = choice("rounded", ALL_PRODUCTS)
    tokens: int = bounded(512, 2, 1 << 20)

    def __post_init__(self) -> None:
        for field in ("weight_bits", "activation_bits"):
            if getattr(self, field) != OFF:
                self._check_range(field, 2, 4)
        if self.cache_bits not in (0, OFF):
            self._check_range("cache_bits", 2, 4)
        if self.center and self.pre_rope:
            self._refuse("center", "false with pre_rope=true, as RoPE turns a constant")
        if self.fit not in _HESSIANS and self.damping != Kllm.damping:
            self._refuse("damping", f"{Kllm.damping} with fit={self.fit}, which has no Hessian")
        if self.fit in _HESSIANS and not self.weight_fisher:
            self._refuse("weight_fisher", f"true with fit={self.fit}, which has a Hessian instead")
        if self.cache_bits == OFF and self.cache_share:
            self._refuse("cache_share", f"0 with cache_bits={OFF}, which quantizes no K and V")
        if self.fit in _HESSIANS and self.norm == "exact":
            self._refuse("fit", "largest or squares with norm=exact")
        if self.fit == "feedback" and self.activation_bits == OFF:
            self._refuse("fit", "another without quantized activations")
        if self.fit == "sequential" and (self.fisher or self.pre_rope):
            self._refuse("fit", "another with fisher=true or pre_rope=true")
        if self.steps:
            if self.fits_weights and self.fit == "largest":
                self._refuse("steps", "0 with fit=largest, whose indices follow the codebook")
            if self.pre_rope or self.outliers == "static":
                self._refuse("steps", "0 with pre_rope=true or outliers=static")

    def beside(self, others: Sequence[Method]) -> Method:
        """K and V are left to another method for them, unless ``cache_bits`` is given."""
        taken = self.cache_bits == 0 and any(each.caches for each in others)
        return dataclasses.replace(self, cache_bits=OFF) if taken else self

    @property
    def calibration_tokens(self) -> int:
        return _HESSIAN_TOKENS if self.steps or self.fit in _HESSIANS else 0

    @property
    def replaces_weights(self) -> bool:
        return self.fits_weights and self.fit != "largest"

    @property
    def fits_weights(self) -> bool:
        """Weights are quantized."""
        return self.weight_bits != OFF

    @property
    def kept_bits(self) -> int:
        """Bits of an index in the caches."""
        return self.cache_bits or min(self.weight_bits, self.activation_bits)

    def sites(self) -> dict[str, int]:
        """Quantized activations and the bits of each."""
        taken = quantized_sites(glu=self.glu, scores=self.scores)
        bits = dict.fromkeys(taken, self.activation_bits)
        bits |= dict.fromkeys(CACHED, self.kept_bits)
        return {name: each for name, each in bits.items() if each != OFF}

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
        state = offsets(self, data)
        sites = self.sites()
        with Site(data.model) as site:
            self.install_conditioning(site, state)
            if self.fit == "sequential":
                state = fit_layers(self, data, state)
            else:
                if self.fits_weights and self.fit == "largest":
                    state |= weight_codebooks(self, data)
                if sites:
                    state |= activation_codebooks(self, data, sites)
                if self.fits_weights and self.fit != "largest":
                    state |= fitted_weights(self, data, state)  # for these activations
        if self.steps and (sites or self.fits_weights):
            key = self.key("tuning", *self.calibration_fields())
            state = tune(self, state, data, self.steps, key)
        return state

    def install_conditioning(self, site: Site, state: State) -> None:
        """Weights with the rotation in them; K with its offset."""
        names = {module: name for name, module in site.linears.items()}
        for i, layer in enumerate(site.layers if self.rotate else ()):
            size = int(site.attentions[i].head_dim)  # type: ignore[arg-type]
            v, o = (modules(layer)[name] for name in "vo")
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

    def key(self, what: str, *fields: str) -> str:
        """Names a step of the calibration that depends on these fields."""
        known = {name: getattr(self, name) for name in fields}
        return f"kllm-{what}-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]}"

    def unscaled(self, layer: nn.Module, name: str, x: Tensor) -> Tensor:
        """A linear layer's input without the norm's factor, if the weights have that."""
        norm = norm_of(layer, name)
        if norm is None or self.norm == "unfolded":
            return x
        factor = norm.weight.detach().to(x.device)
        return torch.where(factor == 0, 0, x / torch.where(factor == 0, 1, factor))

    def groups(self, layer: nn.Module) -> dict[str, tuple[str, ...]]:
        """Linear layers that share a matmul, as golden.kllm.flow fuses them."""
        linear = modules(layer)
        made = {}
        for gate in filter(lambda name: kind_of(name) == "gate", linear):
            expert = expert_of(gate)
            for group, members in matmuls(self.fuse, linear[gate].out_features).items():
                own = "" if members[0] in linear else expert
                made[f"{group}{own}"] = tuple(f"{name}{own}" for name in members)
        return made

    def joined(self, layer: nn.Module, members: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
        """``_folded`` weights of a matmul as one, and the factor of each."""
        weights, factors = zip(*(self._folded(layer, name) for name in members), strict=True)
        return torch.cat(weights), list(factors)

    def _folded(self, layer: nn.Module, name: str) -> tuple[Tensor, Tensor]:
        """(weight (N, K) as it is quantized, the factor (1, K) that is in it), float64."""
        weight = modules(layer)[name].weight.detach().double()
        factor = torch.ones_like(weight[:1])
        norm = norm_of(layer, name)
        if norm is not None and self.norm != "unfolded":
            factor = norm.weight.detach().double()[None]
            weight = fold(weight.t(), factor[0]).weight.t()
        if name == "q":
            scaling = self.factor(layer, name)
            weight, factor = weight * scaling, factor * scaling
        return weight, factor

    @staticmethod
    def factor(layer: nn.Module, name: str) -> float:
        """Returns the factor in the stored weights of a layer: of q, the scaling of its scores."""
        return float(layer.get_submodule("self_attn").scaling) if name == "q" else 1.0  # type: ignore[arg-type]

    def outliers_of(self, site: str, length: int) -> int:
        """Counts the outliers on each side of a vector of a site."""
        share = self.share_of(site)
        return outlier_count(length, share) if share else 0

    def tap_site(
        self, patch: Patch, layer: nn.Module, site: str, tap: Callable[[Tensor], Any]
    ) -> None:
        """Records a site of whole tokens where ``install`` will quantize it."""
        linear = modules(layer)
        names = readers_of(layer, site)
        if site in NORMED:
            at_input = self.norm == "index" or norm_before(layer, site) is None
            put = patch.input if at_input else patch.output
            put(entry_of(layer, site), tap)
        elif names:
            for name in names:
                patch.input(linear[name], tap)
        else:
            for name in block_of(layer).of_kind(site):
                patch.output(linear[name], tap)

    def share_of(self, site: str) -> float:
        """Outliers on each side."""
        if SITES[site].outliers:
            return self.share / 2
        return self.cache_share / 2 if site in CACHED else 0.0

    # ---- online

    def install(self, site: Site, state: State) -> None:
        self.install_conditioning(site, state)
        for i in range(len(site.layers)):
            self.install_weights(site, state, i)
            if self.activation_bits == OFF:
                continue
            if self.product in FIXED_PRODUCTS and self.fits_weights:
                self.install_products(site, state, i)
            self.install_activations(site, state, i)
        self.install_attention(site, state, self.product)

    def quantized(
        self, state: State, i: int, layer: nn.Module, only: Collection[str] | None = None
    ) -> dict[str, QuantizedWeight]:
        """Linear layers' weights as they are stored in memory, q with the scaling in it."""
        made = {}
        only = modules(layer) if only is None else only
        for group, members in self.groups(layer).items():
            if not set(members) & set(only):
                continue
            codebook = state[f"{i}.weight.{group}"].long()
            if f"{i}.index.{group}" not in state:
                for name in filter(only.__contains__, members):
                    made[name] = quantize_weight(self._folded(layer, name)[0], codebook=codebook)
                continue
            rows = [modules(layer)[name].out_features for name in members]
            index = state[f"{i}.index.{group}"].split(rows)
            scale = state[f"{i}.scale.{group}"].long().split(rows)
            for name, own, words in zip(members, index, scale, strict=True):
                if name in only:
                    made[name] = QuantizedWeight(own.t().contiguous(), words, codebook)
        return made

    def layer(
        self,
        model: nn.Module,
        state: State,
        i: int,
        thresholds: Tensor,
        kv_heads: int | None = None,
        seen: Mapping[str, Tensor] | None = None,
    ) -> tuple[LayerWeights, QuantizedLayer]:
        """Layer ``i`` with its real weights, conditioned, and as golden.kllm.layer compiles it.

        thresholds: (2, 4) FP16 words, Oaken's. kv_heads: of ``layer_weights``. seen: what the float
        layer gives, for one with norms after its matmuls. On the machine the layer does what
        ``install`` of this method and of Oaken's computes. Channels' scales that have a factor are
        rounded once more. ConfigError: there is no such flow.
        """
        options = self.layer_options()
        with Site(model) as site:
            layer = site.layers[i]
            self.install_conditioning(site, state)
            real = layer_weights(layer, model.config, kv_heads)
            if real.shape.clamped and self.glu == "index":  # the machine does so after the limits
                self._refuse("glu", "exact for a clamped network of the accelerator")
            weights = self.quantized(state, i, layer)
            groups = self.groups(layer)
        norms = norm_factors(real, options, {} if seen is None else seen)
        factor = dict(norms)
        if "q" in norms:  # its norm does not see what these weights have of the scores
            factor["q"] = norms["q"] / real.scaling
        for name in ("o", "down") if residual_factor(layer) != 1 else ():
            factor[name] = norms.get(name, residual_factor(layer))
        weight = {}
        for group, members in groups.items():
            joined = _side_by_side([_ordered(weights[name], real, name) for name in members])
            weight[group] = multiplied(joined, members, real.shape, factor)
        if real.shape.experts:  # whose router this method leaves as it is
            weight |= router_images(real, self.weight_bits, self.antisymmetric)
        codebook = {name: state[f"{i}.{name}"].long() for name in self.sites()}
        unused = {name: codebook["x"] for name in used_sites(real.shape) if name not in codebook}
        found = state[f"{i}.k.offset"].long() if self.center else None
        if found is not None and "k" in real.order:
            found = found.flatten()[real.order["k"]].unflatten(0, (real.shape.kv_heads, -1))
        return real, QuantizedLayer(
            real.shape, options, weight, codebook | unused, thresholds, found,
            constant_vectors(real, options, norms),
        )  # fmt: skip

    def layer_options(self) -> LayerOptions:
        """Says how its layers lie on the machine. ConfigError: there is no such flow."""
        for field, value in _MACHINE_FLOW.items():
            if getattr(self, field) != value:
                self._refuse(field, f"{value} for a layer of the accelerator")
        if OFF in (self.weight_bits, self.activation_bits):
            raise ConfigError("weights and activations must be quantized for the accelerator")
        return LayerOptions(fuse=self.fuse, glu=self.glu, share=self.share / 2, center=self.center)

    def install_group(self, site: Site, state: State, i: int, group: str) -> None:
        """Weights of a matmul, where the norm before it has its factor still."""
        layer = site.layers[i]
        linear = modules(layer)
        names = {module: name for name, module in site.linears.items()}
        members = self.groups(layer)[group]
        for name, each in self.quantized(state, i, layer, members).items():
            weight = self.unscaled(layer, name, each.dequantize().t())
            site.weight(names[linear[name]], weight / self.factor(layer, name))

    def install_weights(self, site: Site, state: State, i: int) -> None:
        layer = site.layers[i]
        linear = modules(layer)
        names = {module: name for name, module in site.linears.items()}
        if self.weight_bits == OFF:
            weights = {name: self._folded(layer, name)[0] for name in linear}
        else:
            quantized = self.quantized(state, i, layer)
            weights = {name: each.dequantize().t() for name, each in quantized.items()}
        for name, weight in weights.items():
            site.weight(names[linear[name]], weight / self.factor(layer, name))
        for where in NORMED if self.norm != "unfolded" else ():
            norm, router = norm_before(layer, where), router_of(layer)
            if norm is None:
                continue
            if where == "post" and router is not None:
                site.parameter(router, "weight", router.weight.detach() * norm.weight.detach())
            site.parameter(norm, "weight", torch.ones_like(norm.weight))
        if self.weight_bits == OFF:
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
        quantize = self._tokens(state, i, where, length)
        if self.outliers == "static":
            counters = [site.bits.adder("activations", name) for name in counted]

            def static(x: Tensor) -> Tensor:
                found = quantize(x)
                f = float(found.outliers) / x.numel()
                for count in counters:
                    count(x.numel(), codebook.bits + _OUTLIER * f)
                return found.value

            return static
        size = length // vectors_of(where, length)
        k = self.outliers_of(where, size)
        for name in counted:
            bits = codebook.bits + (_SCALE + 2 * k * _OUTLIER) / size
            site.bits.add("activations", name, length, bits)
        return lambda x: quantize(x).value

    def _tokens(
        self, state: State, i: int, where: str, length: int
    ) -> Callable[[Tensor], FakeTokens]:
        """QUANTIZE of a site of whole tokens."""
        codebook = FakeCodebook.of(state[f"{i}.{where}"])
        if self.outliers == "static":
            upper, lower = state[f"{i}.{where}.thresholds"].tolist()
            return lambda x: fake_tokens(x, codebook, thresholds=(upper, lower))
        vectors = vectors_of(where, length)
        k = self.outliers_of(where, length // vectors)
        if vectors == 1:
            return lambda x: fake_tokens(x, codebook, k)

        def in_parts(x: Tensor) -> FakeTokens:
            made = fake_tokens(x.unflatten(-1, (vectors, -1)), codebook, k)
            return dataclasses.replace(
                made, value=made.value.flatten(-2), index=made.index.flatten(-2)
            )

        return in_parts

    def install_activations(self, site: Site, state: State, i: int) -> None:
        for where in (*NORMED, *filter(self.sites().get, PLAIN)):
            self.install_activation(site, state, i, where)

    def install_activation(self, site: Site, state: State, i: int, where: str) -> None:
        """A site of whole tokens."""
        layer = site.layers[i]
        linear = modules(layer)
        read = readers_of(layer, where)
        if not read:  # SiLU of s * c and the product follow in the model
            for name in block_of(layer).of_kind(where):
                length = linear[name].out_features
                site.output(linear[name], self._quantizer(site, state, i, where, length))
            return
        names = {module: name for name, module in site.linears.items()}
        counted = [names[linear[name]] for name in read]
        length = linear[read[0]].in_features
        quantize = self._quantizer(site, state, i, where, length, counted)
        if where in NORMED and (self.norm == "index" or norm_before(layer, where) is None):
            site.input(entry_of(layer, where), quantize)
            return
        for name in read:
            site.input(linear[name], quantize)

    def install_products(self, site: Site, state: State, i: int) -> None:
        """Linear layers add up words of products; called before ``install_activations``."""
        layer = site.layers[i]
        linear = modules(layer)
        if router_of(layer) is not None:
            self._refuse("product", "rounded for a model with experts")
        inner = max(each.in_features for each in linear.values())
        if vectors_of("h", inner) > 1:
            self._refuse("product", f"rounded for a network of {inner} inner elements, in parts")
        for where in filter(readers, (*NORMED, *filter(self.sites().get, PLAIN))):
            names = readers_of(layer, where)
            norm, entry = norm_before(layer, where), None
            if where in NORMED and (self.norm == "index" or norm is None):
                entry = entry_of(layer, where)  # where the quantizer is
            norm = None if entry is None else norm
            quantize = self._tokens(state, i, where, linear[names[0]].in_features)
            inputs = Inputs(quantize, None if norm is None else float(norm.variance_epsilon))
            for module in [linear[name] for name in names] if entry is None else [entry]:
                site.input(module, inputs.hold)
            for name, weight in self.quantized(state, i, layer, names).items():
                error = ProductError.of(state[f"{i}.{where}"], weight.codebook, self.product)
                add = functools.partial(inputs.add, error, weight, self.factor(layer, name))
                site.output(linear[name], add)

    def install_attention(self, site: Site, state: State, product: str = "exact") -> None:
        """product: words of V in the lanes; the fits do not depend on them."""
        cached = self.kept_bits != OFF
        head_dim = int(site.attentions[0].head_dim)  # type: ignore[arg-type]
        k_kept = self.outliers_of("k", head_dim)
        books: dict[str, FakeCodebook] = {}
        for i in range(len(site.layers)):
            for where in (name for name, each in SITES.items() if each.heads):
                if f"{i}.{where}" in state:
                    books[f"{i}.{where}"] = FakeCodebook.of(state[f"{i}.{where}"])
            if cached and product in FIXED_PRODUCTS:
                book, bits_a = books[f"{i}.v"], min(self.activation_bits, 4)
                stored = integer_centroids(book, state[f"{i}.v"], product, bits_a)
                books[f"{i}.v"] = dataclasses.replace(book, centroids=stored)
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
        if not cached and self.integer_bits == OFF and self.scores == "direct":
            return

        def core(layer: int, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
            real = q, k, v
            q = (q * scores.scaling).half().float()
            query = books[f"{layer}.q"] if "q" in self.sites() else None
            if cached:
                if not self.pre_rope:
                    k = fake_tokens(k, books[f"{layer}.k"], k_kept).value
                made = fake_tokens(v, books[f"{layer}.v"], k_kept)
                v, scale = made.value, made.scale
            else:  # another method's cache, or none: the magnitude of what is there
                scale = v.abs().amax(-1, keepdim=True)
            y = fake_attention(q, k, (v, scale), self.integer_bits, query, rule=scores)
            name = f"{site.layer_names[layer]}.self_attn"
            if name in site.exact and self._exact_attention:
                if not scores.is_plain:
                    raise ConfigError(
                        f"{name}: the exact attention has no cap of scores, window or sinks"
                    )
                fast, y = y, self._attend(state, layer, *real, scores.scaling)
                site.compare(name, fast, y)
            return y

        site.attention(core)

    # ---- bit-true

    @property
    def _exact_attention(self) -> bool:
        """The lanes can do it: caches without outliers, K after RoPE, 4 or 8 bits."""
        return (
            self.kept_bits != OFF
            and not self.cache_share
            and not self.pre_rope
            and self.integer_bits in INT_BITS
            and (self.scores == "direct" or self.activation_bits != OFF)
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
        if OFF in (self.weight_bits, self.activation_bits):
            return None
        i = next(i for i, each in enumerate(site.layer_names) if name.startswith(f"{each}."))
        layer = site.layers[i]
        if vectors_of("h", max(each.in_features for each in modules(layer).values())) > 1:
            raise ConfigError("--bit-true knows no network in parts")
        short = next(s for s, module in modules(layer).items() if module is site.linears[name])
        where = site_of(short)
        kind = kind_of(short)
        if where == "post" and expert_of(short):
            return None  # the norm's input has all tokens, and an expert reads some
        with Site(site.model) as changed:
            self.install_conditioning(changed, state)
            weight = self.quantized(state, i, layer, (short,))[short]
        codebook = state[f"{i}.{where}"].long()
        epsilon: float | None = None
        held: list[Tensor] = []
        norm = norm_of(layer, short)
        if norm is not None and self.norm == "index":
            epsilon = float(norm.variance_epsilon)
        if where in NORMED and (epsilon is not None or norm is None):

            def hold(x: Tensor) -> Tensor:
                held[:] = [x]
                return x

            site.input(entry_of(layer, where), hold)  # in front of the quantizer
        scaling, linear = self.factor(layer, short), site.linears[name]

        def function(x: Tensor) -> Tensor:
            words = bits_from_float(held.pop().flatten(0, -2) if held else x)
            tokens = self._exact_tokens(state, i, where, words, epsilon)
            made = exact.linear(tokens, codebook, weight, self.product, epsilon is not None)
            y = made.y
            if linear.bias is not None:
                y = add(y, bits_from_float(linear.bias.detach().double() * scaling))
            if self.glu == "index" and kind in ("gate", "up"):
                quantized = self._exact_tokens(state, i, kind, y)
                return quantized.value(state[f"{i}.{kind}"].long()).float()
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
        return exact.quantize(words, codebook, self.share_of(where), thresholds, epsilon)


def _ordered(weight: QuantizedWeight, real: LayerWeights, name: str) -> QuantizedWeight:
    """The outputs of a linear layer in the order of ``real``."""
    if name not in real.order:
        return weight
    order = real.order[name]
    return dataclasses.replace(weight, index=weight.index[:, order], scale=weight.scale[order])


def _side_by_side(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """The weights of one matmul."""
    index = torch.cat([each.index for each in weights], 1)
    scale = torch.cat([each.scale for each in weights])
    return QuantizedWeight(index, scale, weights[0].codebook)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmPlain(Kllm):
    """``kllm-plain-wNaM``: KLLM with each codebook and scale of its own tensor alone.

    The options of ``kllm-wNaM`` may be added one by one.
    """

    pattern: ClassVar[str] = r"kllm-plain-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("kllm-plain-w4a4", "kllm-plain-w4a3")

    glu: str = "index"
    center: bool = False
    rotate: bool = False
    fit: str = "largest"
    steps: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmS(KllmPlain):
    """``kllm-s-wNaM``: plain KLLM with offline outlier thresholds, Orizuru bypassed."""

    pattern: ClassVar[str] = r"kllm-s-w(?P<weight_bits>\d{1,3})a(?P<activation_bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("kllm-s-w4a4", "kllm-s-w4a3")

    outliers: str = choice("static", ("static",))
