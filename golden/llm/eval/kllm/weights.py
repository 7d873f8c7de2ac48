"""Codebooks of weights, and weights fitted with them, from the unchanged model."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from golden.kllm.fit import least_squares
from golden.kllm.quantize import Training, train_weight_codebook
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.kllm.activations import SAMPLES
from golden.llm.eval.kllm.flow import Flow
from golden.llm.eval.kllm.places import CONDITIONS, expert_of, modules, on_device, site_of
from golden.llm.eval.kllm.sequential import check_tokens, fitted, stored, unknown
from golden.llm.eval.method import Site, State
from golden.llm.patch import Patch


def _folded_fisher(fisher: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """Squared gradients of folded weights: those of the weights over their factors squared."""
    parts = [own.double() / each.cpu() ** 2 for own, each in zip(fisher, factors, strict=True)]
    return torch.cat(parts).nan_to_num(posinf=0)


def _weight_fisher(flow: Flow, data: CalibrationData) -> dict[str, Tensor]:
    """Gives Fisher weights of what ``install_conditioning`` has put in the model; {}: unwanted."""
    if not flow.weight_fisher:
        return {}
    changed = [name for name in CONDITIONS if getattr(flow, name)]
    return data.weight_fisher(changed="-".join(changed))


def weight_codebooks(flow: Flow, data: CalibrationData) -> State:
    key = flow.key(
        "weights", "weight_bits", "weight_fisher", "fuse", "norm", "antisymmetric", *CONDITIONS
    )
    fisher = _weight_fisher(flow, data)
    state: State = {}
    with Patch(data.model) as patch:
        layers, names = patch.layers, {module: name for name, module in patch.linears.items()}
    for i, layer in data.track(list(enumerate(layers)), "codebooks of weights"):

        def make(i: int = i, layer: nn.Module = layer) -> State:
            made = {}
            for group, members in flow.groups(layer).items():
                weight, factors = flow.joined(layer, members)
                squares = None
                if flow.weight_fisher:
                    own = [fisher[names[modules(layer)[name]]] for name in members]
                    squares = _folded_fisher(own, factors).to(weight.device)
                made[f"{i}.weight.{group}"] = train_weight_codebook(
                    weight,
                    flow.weight_bits,
                    squares,
                    data.seed,
                    Training(SAMPLES, flow.antisymmetric),
                ).cpu()
            return made

        state |= data.steps.once(f"{key}-{i}", make)
    return state


def fitted_weights(flow: Flow, data: CalibrationData, state: State) -> State:
    """Codebook, scales and indices of each group of linear layers, fitted together.

    ConfigError: fewer tokens than a Hessian has columns, so that it is singular.
    """
    with Patch(data.model) as patch:
        layers = patch.layers
    if flow.fit == "feedback":
        for layer in layers:
            check_tokens(flow, data, layer)
    state = on_device(data.windows[0].device, state)
    hessians = functools.cache(lambda: _hessians(flow, data, state))  # for layers not yet kept
    key = flow.key("fit", *flow.calibration_fields())
    made: State = {}
    for i, layer in data.track(list(enumerate(layers)), "weights"):

        def make(i: int = i, layer: nn.Module = layer) -> State:
            own = hessians() if flow.fit == "feedback" else None
            return _fitted_layer(flow, data, i, layer, own)

        made |= data.steps.once(f"{key}-{i}", make)
    return made


def _fitted_layer(
    flow: Flow, data: CalibrationData, i: int, layer: nn.Module, hessians: State | None = None
) -> State:
    """Fits one layer; in the Hessians, or by the diagonal of Fisher information."""
    fisher = _weight_fisher(flow, data) if hessians is None else {}
    names = {module: name for name, module in data.linears.items()}
    made: State = {}
    for group, members in flow.groups(layer).items():
        weight, factors = flow.joined(layer, members)
        if hessians is not None:
            first = members[0]
            known = hessians.get(f"{i}.{site_of(first)}{expert_of(first)}")
            hessian = unknown(weight.shape[1]).to(weight.device) if known is None else known
            found = fitted(flow, (i, group), weight, hessian, data.seed)
        else:
            importance = None
            if fisher:
                own = [fisher[names[modules(layer)[name]]] for name in members]
                importance = _folded_fisher(own, factors).to(weight.device)
            found = least_squares(
                weight, flow.weight_bits, importance, seed=data.seed,
                antisymmetric=flow.antisymmetric,
            )  # fmt: skip
        made |= stored(found, i, group)
    return made


def _hessians(flow: Flow, data: CalibrationData, state: State) -> dict[str, Tensor]:
    """Sums of x x^T of what the matmuls read, "LAYER.SITE" (K, K) float64; ".EXPERT" of experts.

    The inputs are quantized, as the hardware has them, and the weights are not. A norm's factor
    is in the weights, so it is taken out of x; a factor of 0 hides its channel.
    """
    total: dict[str, Tensor] = {}
    with Site(data.model) as site:
        for i in range(len(site.layers)):
            flow.install_activations(site, state, i)
        flow.install_attention(site, state)
        for i, layer in enumerate(site.layers):
            places: dict[str, str] = {}
            for name in modules(layer):
                places.setdefault(f"{i}.{site_of(name)}{expert_of(name)}", name)
            for place, first in places.items():

                def add(
                    x: Tensor, key: str = place, layer: nn.Module = layer, first: str = first
                ) -> Tensor:
                    rows = flow.unscaled(layer, first, x.flatten(0, -2))
                    product = (rows.t() @ rows).double()
                    total[key] = total[key] + product if key in total else product
                    return x

                site.input(modules(layer)[first], add)
        for ids in data.track(data.windows, "Hessians"):
            data.run(ids)
    return total
