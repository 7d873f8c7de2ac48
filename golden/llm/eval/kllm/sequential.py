"""KLLM's codebooks and weights of a layer, each for what the parts before it give once quantized.

A codebook of activations is of what the quantized layers and matmuls before it give. The Hessian of
a weight is of its inputs after all of that.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from golden.config import ConfigError
from golden.kllm.fit import Fit, feedback, least_squares, refine
from golden.kllm.quantize import QuantizedWeight
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.kllm.activations import train
from golden.llm.eval.kllm.flow import Flow, Tap
from golden.llm.eval.kllm.places import (
    NORMED,
    OFF,
    expert_of,
    modules,
    on_device,
    readers_of,
)
from golden.llm.eval.method import Site, State
from golden.llm.eval.walk import LayerWalk
from golden.llm.patch import Patch, V
from golden.llm.structure import block_of


def stored(found: Fit, i: int, group: str) -> State:
    """A matmul's weights as a state keeps them."""
    made: QuantizedWeight = found.quantized()
    return {
        f"{i}.weight.{group}": made.codebook.cpu(),
        f"{i}.index.{group}": made.index.t().contiguous().cpu(),
        f"{i}.scale.{group}": made.scale.cpu(),
    }


def fitted(flow: Flow, place: tuple[int, str], weight: Tensor, hessian: Tensor, seed: int) -> Fit:
    """A weight in the Hessian of its inputs; ConfigError, with layer and matmul: it is singular."""
    found = least_squares(
        weight, flow.weight_bits, hessian.diagonal(), seed=seed, antisymmetric=flow.antisymmetric
    )
    try:
        found = feedback(weight, hessian, found, damping=flow.damping)
    except torch.linalg.LinAlgError:
        i, group = place
        raise ConfigError(
            f"the Hessian of {group} of layer {i} is singular; more damping or tokens"
        ) from None
    return refine(weight, hessian, found)


def unknown(width: int) -> Tensor:
    """The Hessian (width, width) of inputs that nobody has seen: of an expert without tokens."""
    return torch.eye(width, dtype=torch.float64)


def _rows(windows: list[Tensor]) -> Tensor:
    """(1, T, ...) of each window as (tokens, ...)."""
    return torch.cat([each[0] for each in windows])


class _Layer:
    """One layer at work: its state so far, on the open ``site``."""

    def __init__(
        self, flow: Flow, walk: LayerWalk, i: int, data: CalibrationData, site: Site
    ) -> None:
        self.flow, self.walk, self.i, self.data, self.site = flow, walk, i, data, site
        self.layer = walk.layers[i]
        self.made: State = {}

    def train(self, where: str, rows: Tensor) -> None:
        """The codebook of a site from (tokens, vectors, K)."""
        pick = torch.randperm(len(rows), generator=self.data.generator(self.i))[: self.flow.tokens]
        key = f"{self.i}.{where}"
        seen = {key: rows[pick.to(rows.device)].flatten(0, -2).cpu()}
        found = train(self.flow, seen, key, self.flow.sites()[where], self.data)
        self.made |= {name: each.to(rows.device) for name, each in found.items()}

    def quantize(self, where: str, windows: list[Tensor]) -> None:
        """Trains and installs a site of whole tokens, if it is quantized."""
        if where not in self.flow.sites():
            return
        self.train(where, _rows(windows)[:, None])
        self.flow.install_activation(self.site, self.made, self.i, where)

    def seen(self, where: str, post: list[Tensor] | None = None) -> list[Tensor]:
        """A site as it is now; ``post``: the layer's hidden states after attention, if known.

        Of experts, one after the other: (1, tokens, K) of each window and expert with tokens.
        """
        linear = modules(self.layer)
        if where not in NORMED and where != "attention":
            made = []
            for name in readers_of(self.layer, where):
                made += self.inputs(name, post)
            for name in block_of(self.layer).of_kind(where):

                def put_output(patch: Patch, tap: Tap, module: nn.Module = linear[name]) -> None:
                    patch.output(module, tap)

                made += self._tapped(put_output, post)
            return made

        def put(patch: Patch, tap: Tap) -> None:
            self.flow.tap_site(patch, self.layer, where, tap)

        return self._tapped(put, post)

    def inputs(self, name: str, post: list[Tensor] | None = None) -> list[Tensor]:
        """Returns what a linear layer reads."""
        linear = modules(self.layer)[name]
        return self._tapped(lambda patch, tap: patch.input(linear, tap), post)

    def _tapped(self, put: Callable[[Patch, Tap], None], post: list[Tensor] | None) -> list[Tensor]:
        if post is None:
            return self.walk.seen(self.i, self.walk.hidden, put)
        return self.walk.seen_after_attention(self.i, post, put)

    def fit(self, site: str, post: list[Tensor] | None = None) -> None:
        """Fits and installs the matmuls that read a site, if weights are quantized."""
        if not self.flow.fits_weights:
            return
        names = readers_of(self.layer, site)
        hessians: dict[str, Tensor] = {}
        for group, members in self.flow.groups(self.layer).items():
            first, expert = members[0], expert_of(members[0])
            if first not in names:
                continue
            if expert not in hessians:
                hessians[expert] = self._hessian(first, post)
            weight, _ = self.flow.joined(self.layer, members)
            found = fitted(self.flow, (self.i, group), weight, hessians[expert], self.data.seed)
            self.made |= stored(found, self.i, group)
            self.flow.install_group(self.site, self.made, self.i, group)

    def _hessian(self, name: str, post: list[Tensor] | None) -> Tensor:
        """Returns that of a linear layer's inputs, without the norm's factor."""
        seen = self.inputs(name, post)
        if not seen:
            linear = modules(self.layer)[name]
            return unknown(linear.in_features).to(linear.weight.device)
        x = self.flow.unscaled(self.layer, name, _rows(seen))
        return (x.t() @ x).double()

    def train_cached(self) -> None:
        """Codebooks of K and V, and of q if it is quantized."""
        heads: dict[str, list[Tensor]] = {"k": [], "v": [], "q": []}
        size = int(self.site.attentions[self.i].head_dim)  # type: ignore[arg-type]

        def put(patch: Patch, tap: Tap) -> None:
            def query(_layer: int, q: Tensor) -> Tensor:
                heads["q"].append(q[0].transpose(0, 1))
                return q

            def kv(_layer: int, kind: int, x: Tensor) -> Tensor | None:
                heads["kv"[kind]].append(x[0].unflatten(-1, (-1, size)))
                return tap(x) if kind == V else None

            patch.query(query)
            patch.kv(kv)

        self.walk.seen(self.i, self.walk.hidden, put)
        for where in heads.keys() & self.flow.sites().keys():
            self.train(where, torch.cat(heads[where]))


def fit_layer(flow: Flow, walk: LayerWalk, i: int, state: State, data: CalibrationData) -> State:
    """Codebooks, scales and indices of layer ``i``; ``state``: what is known before, of K."""
    with Site(walk.model) as site:
        own = _Layer(flow, walk, i, data, site)
        own.quantize("x", own.seen("x"))
        own.fit("x")
        own.train_cached()
        flow.install_attention(site, state | own.made)
        own.quantize("attention", own.seen("attention"))
        own.fit("attention")
        post = walk.after_attention(i, walk.hidden)
        own.quantize("post", own.seen("post", post))
        own.fit("post", post)
        for where in ("gate", "up"):
            own.quantize(where, own.seen(where, post))
        own.quantize("h", own.seen("h", post))
        own.fit("h", post)
        return own.made


def fit_layers(flow: Flow, data: CalibrationData, state: State) -> State:
    """``state`` with codebooks and weights, layer by layer after those quantized before."""
    walk = LayerWalk(data.model, data.windows)
    if flow.fits_weights:
        for layer in walk.layers:
            check_tokens(flow, data, layer)
    key = flow.key("sequential", *flow.calibration_fields())
    device = walk.hidden[0].device
    made = on_device(device, state)
    for i in data.track(range(len(walk.layers)), "layers"):
        fit = functools.partial(fit_layer, flow, walk, i, dict(made), data)
        made |= on_device(device, data.steps.once(f"{key}-{i}", fit))
        with Site(data.model) as site:
            flow.install_weights(site, made, i)
            if flow.activation_bits != OFF:
                flow.install_activations(site, made, i)
            flow.install_attention(site, made)
            walk.hidden = walk.run(i, walk.hidden)
    return made


def check_tokens(flow: Flow, data: CalibrationData, layer: nn.Module) -> None:
    """ConfigError: fewer tokens than a Hessian has columns, so that it is singular."""
    tokens = sum(map(len, data.windows))
    linears = modules(layer)
    widest = max(linears, key=lambda name: int(linears[name].in_features))
    inputs = linears[widest].in_features
    if tokens < inputs:
        raise ConfigError(
            f"fit={flow.fit} must have {inputs} tokens of calibration or more, as many as "
            f"{widest} has inputs, not {tokens}"
        )
