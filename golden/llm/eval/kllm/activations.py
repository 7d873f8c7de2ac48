"""Codebooks of activations, and K's offsets, from what the unchanged model shows on a text."""

import itertools
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor

from golden.kllm.conditioning import offset
from golden.kllm.flow import SITES
from golden.kllm.quantize import Training, train_activation_codebook
from golden.llm.checkpoint import next_token_loss
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.fake.kllm import half_words
from golden.llm.eval.kllm.flow import Flow
from golden.llm.eval.kllm.places import (
    CACHED,
    CONDITIONS,
    NORMED,
    PLAIN,
    modules,
    norm_before,
    vectors_of,
)
from golden.llm.eval.method import State
from golden.llm.patch import Patch
from golden.llm.structure import may_shift_keys

SAMPLES = 1 << 16  # of a k-means
_OBSERVED = 1 << 31  # bytes of observations that are alive during calibration


def offsets(flow: Flow, data: CalibrationData) -> State:
    """FP16 words (kv_heads, size) of every layer, "0.k.offset".

    0 where a constant in K changes what attention gives.
    """
    if not flow.center:
        return {}
    with Patch(data.model) as patch:
        size = int(patch.attentions[0].head_dim)  # type: ignore[arg-type]
        outputs = [modules(each)["k"].out_features for each in patch.layers]
        free = [may_shift_keys(each) for each in patch.attentions]
    seen = observe(flow, data, range(len(outputs)), ("k",))
    return {
        f"{i}.k.offset": offset(seen[f"{i}.k"].reshape(-1, length // size, size)) * free[i]
        for i, length in enumerate(outputs)
    }


def activation_codebooks(flow: Flow, data: CalibrationData, sites: dict[str, int]) -> State:
    offline = (
        "activation_bits", "cache_bits", "weight_bits", "share", "outliers", "norm", "glu",
        "scores", "cache_share", "pre_rope", "fisher", "tokens", "antisymmetric", *CONDITIONS,
    )  # fmt: skip
    key = flow.key("activations", *offline)
    with Patch(data.model) as patch:
        layers = patch.layers
    widths = [module.out_features for module in modules(layers[0]).values()]
    floats = 4 * sum(widths) * (2 if flow.fisher else 1)  # of a token and layer, about
    alive = flow.tokens + max(map(len, data.windows))
    step = max(1, _OBSERVED // (4 * floats * alive))
    state: State = {}
    for first in data.track(list(range(0, len(layers), step)), "codebooks of activations"):
        some = range(first, min(first + step, len(layers)))

        def make(some: range = some) -> State:
            seen = observe(flow, data, some, sites)
            return {
                name: value
                for layer in some
                for site, bits in sites.items()
                for name, value in train(flow, seen, f"{layer}.{site}", bits, data).items()
            }

        state |= data.steps.once(f"{key}-{first}", make)
    return state


def observe(flow: Flow, data: CalibrationData, layers: range, sites: Iterable[str]) -> State:
    """Captures the sites of some layers on ``tokens`` tokens, "LAYER.SITE" (T, K) float32.

    With ``fisher`` also "LAYER.SITE.gradient". Heads of q, k, v are tokens of their own.
    """
    wanted = {f"{layer}.{site}" for layer in layers for site in sites}
    share = -(-flow.tokens // len(data.windows))
    parts: dict[str, list[Tensor]] = {}
    for i, ids in enumerate(data.windows):
        pick = torch.randperm(len(ids), generator=data.generator(i))[:share].sort().values
        for key, x in _observe_window(flow, data, ids, layers, wanted).items():
            # Experts see a token more than once.
            own = pick if len(x) == len(ids) else pick * len(x) // len(ids)
            parts.setdefault(key, []).append(x[own].cpu())
    return {key: torch.cat(each).flatten(0, -2) for key, each in parts.items()}


def _observe_window(
    flow: Flow, data: CalibrationData, ids: Tensor, layers: range, wanted: Collection[str]
) -> State:
    """``observe`` for all tokens of one window: (T, vectors of a token, K)."""
    seen: dict[str, list[Tensor]] = {}

    def tap(key: str) -> Callable[[Tensor], Tensor]:
        def record(x: Tensor) -> Tensor:
            if key not in wanted:
                return x
            y = x.view_as(x)  # with a gradient of its own: not that of the residual
            if flow.fisher and not y.requires_grad:
                y.requires_grad_()
            seen.setdefault(key, []).append(y)
            return y

        return record

    with Patch(data.model) as patch, torch.set_grad_enabled(flow.fisher):
        for layer in layers:
            for where in (*NORMED, *PLAIN):
                flow.tap_site(patch, patch.layers[layer], where, tap(f"{layer}.{where}"))
        patch.kv(lambda layer, kv, x: tap(f"{layer}.{'kv'[kv]}")(x), flow.pre_rope)
        patch.query(lambda layer, q: tap(f"{layer}.q")(q))
        if not flow.fisher:
            data.run(ids)
            slopes: tuple[Tensor, ...] = ()
        else:
            logits = data.model(ids[None], use_cache=False).logits[0]
            loss = next_token_loss(logits, ids)
            slopes = torch.autograd.grad(loss, [x for parts in seen.values() for x in parts])
        found = {}
        following = iter(slopes)
        for key, parts in seen.items():
            found[key] = torch.cat([_rows(patch, key, x.detach()) for x in parts])
            own = list(itertools.islice(following, len(parts)))
            if own:
                found[f"{key}.gradient"] = torch.cat([_rows(patch, key, x) for x in own])
    return found


def _rows(patch: Patch, key: str, x: Tensor) -> Tensor:
    """(T, vectors of a token, K) of what a tap saw in one window."""
    layer, site = key.split(".")
    if site == "q":
        return x[0].transpose(0, 1)
    if site in CACHED:
        return x[0].unflatten(-1, (-1, int(patch.attentions[int(layer)].head_dim)))  # type: ignore[arg-type]
    return x[0][:, None]


def train(flow: Flow, seen: State, key: str, bits: int, data: CalibrationData) -> State:
    """The codebook of one site, and its thresholds if it has static ones."""
    layer, site = key.split(".")
    x, gradient = seen[key], seen.get(f"{key}.gradient")
    if flow.norm == "exact" and SITES[site].norm:
        # Before gamma, which is in the weights; a gamma of 0 hides its channel.
        with Patch(data.model) as patch:
            norm = norm_before(patch.layers[int(layer)], site)
        if norm is not None:
            gamma = norm.weight.detach().cpu()
            x = torch.where(gamma == 0, 0, x / gamma)
            gradient = None if gradient is None else gradient * gamma
    vectors = vectors_of(site, x.shape[-1])
    x = x.unflatten(-1, (vectors, -1)).flatten(0, -2)
    if gradient is not None:
        gradient = gradient.unflatten(-1, (vectors, -1)).flatten(0, -2)
    fisher = None if gradient is None else gradient.double() ** 2
    thresholds = None
    state: State = {}
    share = flow.share_of(site)
    if flow.outliers == "static" and SITES[site].outliers:
        thresholds = static_thresholds(x.half(), share)
        state[f"{key}.thresholds"] = torch.tensor(thresholds)
    state[key] = train_activation_codebook(
        half_words(x), bits, fisher, share, data.seed, thresholds,
        Training(SAMPLES, flow.antisymmetric and site in CACHED),
    )  # fmt: skip
    return state


def static_thresholds(x: Tensor, share: float) -> tuple[float, float]:
    """(upper, lower) of float16 values: ``share`` of all of them beyond each, fewer if equal."""
    ordered = x.flatten().float().sort().values
    beyond = round(share * len(ordered))
    return float(ordered[len(ordered) - 1 - beyond]), float(ordered[beyond])
