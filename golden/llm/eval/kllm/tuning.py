"""KLLM's scales and codebooks by gradient: the quantized model gives what the unchanged one does.

    minimise over s, c: mean over tokens of KL(softmax(unchanged logits) || softmax(quantized))

Indices of weights stay. A quantizer of activations passes the gradient of its output to its input
and to the centroids that it took. Probabilities are not made integers here.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.flow import SITES
from golden.kllm.products import mirrored
from golden.llm.capture import body
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.fake.kllm import outlier_positions
from golden.llm.eval.kllm.flow import Flow
from golden.llm.eval.kllm.places import CACHED, modules, vectors_of
from golden.llm.eval.method import Site, State
from golden.llm.patch import Scores
from golden.llm.structure import logits as logits_of

_TINY = 1e-30
_CELLS = 8192  # of one unit of x / s
_TOKENS = 512  # of a step, at most
_BLOCK = 4  # steps whose result is kept
_RATE = 1e-3  # of Adam: of scales relative, of centroids absolute
_BETAS = 0.9, 0.95
_MOMENTS = "step", "exp_avg", "exp_avg_sq"
_WARM = 0.1  # share of the steps in which the rate rises


class _Weights(torch.autograd.Function):
    """s[n] * c[index[n, k]]"""

    @staticmethod
    def forward(ctx: Any, scale: Tensor, codebook: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(scale, codebook, index)
        return codebook[index] * scale[:, None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        scale, codebook, index = ctx.saved_tensors
        by_scale = (gradient * codebook[index]).sum(1)
        by_centroid = torch.zeros_like(codebook).index_add_(
            0, index.flatten(), (gradient * scale[:, None]).flatten()
        )
        return by_scale, by_centroid, None


def _cells(centroids: Tensor) -> Tensor:
    """The nearest centroid of every cell of -1..1, int32."""
    edges = torch.arange(-_CELLS, _CELLS + 1, device=centroids.device) / _CELLS
    return torch.bucketize(edges, (centroids[1:] + centroids[:-1]) / 2, out_int32=True)


class _Tokens(torch.autograd.Function):
    """fake_tokens to within a cell; the gradient of a centroid is that of its inliers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, centroids: Tensor, k: int) -> Tensor:
        half = x.detach().reshape(-1, x.shape[-1]).half()
        real = half.float()
        positions, scale = outlier_positions(half, k)
        cell = (real * (_CELLS / scale.clamp(min=_TINY))).add_(_CELLS).int().clamp_(0, 2 * _CELLS)
        index = _cells(centroids).index_select(0, cell.flatten()).reshape(cell.shape)
        value = centroids[index] * scale
        value.scatter_(1, positions, real.gather(1, positions))
        ctx.save_for_backward(index, scale, positions)
        ctx.centroids = len(centroids)
        return value.reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        index, scale, positions = ctx.saved_tensors
        inlier = (gradient.reshape(index.shape) * scale).scatter_(1, positions, 0.0)
        found = torch.zeros(ctx.centroids, device=gradient.device, dtype=gradient.dtype)
        found.index_add_(0, index.flatten(), inlier.flatten())
        return gradient, found, None


def _mirrors(key: str) -> bool:
    """Whether an ``antisymmetric`` flow has this codebook so: of weights, K or V."""
    where = key.split(".")[1]
    return where == "weight" or where in CACHED


def _values(words: Tensor) -> Tensor:
    return float_from_bits(words.long(), FP16).float()


class _Student:
    """A quantized model whose scales and centroids have gradients; ``state`` on its device.

    leaves : by key of the state, scales over their first values, and centroids; of an antisymmetric
        codebook its lower half, so that no step can break it
    """

    def __init__(self, flow: Flow, site: Site, state: State) -> None:
        self.flow, self.site, self.state = flow, site, state
        self.names = {module: name for name, module in body(site.model).named_modules()}
        self.index = {key: each.int() for key, each in state.items() if ".index." in key}
        self.first = {key: _values(each) for key, each in state.items() if ".scale." in key}
        books = [key for key in state if ".weight." in key]
        books += [f"{i}.{where}" for i in range(len(site.layers)) for where in flow.sites()]
        first = {key: torch.ones_like(each) for key, each in self.first.items()}
        first |= {key: _values(state[key]) for key in books}
        self.halved = {key for key in books if flow.antisymmetric and _mirrors(key)}
        first |= {key: first[key][: len(first[key]) // 2].clone() for key in self.halved}
        self.leaves = {key: each.requires_grad_() for key, each in first.items()}

    def codebook(self, key: str) -> Tensor:
        """Returns all centroids of a codebook."""
        leaf = self.leaves[key]
        return mirrored(leaf) if key in self.halved else leaf

    def weights(self) -> dict[str, Tensor]:
        """Returns the weights of all linear layers by the names of their parameters."""
        made = {}
        for i, layer in enumerate(self.site.layers):
            linear = modules(layer)
            for group, members in self.flow.groups(layer).items():
                key = f"{i}.scale.{group}"
                if key not in self.leaves:
                    continue
                joined = _Weights.apply(
                    self.leaves[key] * self.first[key],
                    self.codebook(f"{i}.weight.{group}"),
                    self.index[f"{i}.index.{group}"],
                )
                rows = [linear[name].out_features for name in members]
                for name, own in zip(members, joined.split(rows), strict=True):
                    made[f"{self.names[linear[name]]}.weight"] = own / self.flow.factor(layer, name)
        return made

    def quantizer(self, key: str) -> Callable[[Tensor], Tensor]:
        where = key.split(".")[1]

        def quantize(x: Tensor) -> Tensor:
            vectors = x.unflatten(-1, (vectors_of(where, x.shape[-1]), -1))
            k = self.flow.outliers_of(where, vectors.shape[-1])
            return _Tokens.apply(vectors, self.codebook(key), k).flatten(-2)

        return quantize

    def install(self) -> None:
        """Everything but ``weights``; a norm's factor, too, is in those."""
        self.flow.install_conditioning(self.site, self.state)
        whole = [name for name in self.flow.sites() if not SITES[name].heads]
        for i, layer in enumerate(self.site.layers):
            self.flow.install_weights(self.site, self.state, i)
            for where in whole:
                self.flow.tap_site(self.site, layer, where, self.quantizer(f"{i}.{where}"))

        def core(i: int, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
            q = (q * scores.scaling).half().float()
            q, k, v = (
                self.quantizer(f"{i}.{where}")(x) if where in self.flow.sites() else x
                for where, x in (("q", q), ("k", k), ("v", v))
            )
            if scores.is_plain:
                return nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=1.0, enable_gqa=True
                )
            return _attend(q, k, v, scores)

        self.site.attention(core)

    @torch.no_grad()
    def settle(self) -> None:
        """Centroids ascend and stay in -1..1, a lower half in -1..0; scales are not negative."""
        for key, leaf in self.leaves.items():
            if key in self.first:
                leaf.clamp_(min=0)
            else:
                most = 0 if key in self.halved else 1
                leaf.copy_(leaf.clamp(-1, most).sort().values)

    def words(self) -> State:
        """The state with what was learned."""
        found = dict(self.state)
        for key, leaf in self.leaves.items():
            scale = self.first.get(key)
            value = (self.codebook(key) if scale is None else leaf * scale).detach()
            found[key] = bits_from_float(value.double() + 0.0, FP16).to(self.state[key].dtype)
        return found


def _attend(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """Attention of scaled queries with a cap, a window or sinks."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    tokens = q.shape[2]
    products = scores.capped(q @ k.mT)
    hidden = ~scores.seen(0, tokens, q.device)
    return scores.softmax(products.masked_fill(hidden, -torch.inf)) @ v


def _divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over tokens of KL(teacher || student), of logits (T, words)."""
    return nn.functional.kl_div(
        student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean"
    )


def _share(step: int, steps: int) -> float:
    """Returns the share of the rate at a step: it rises, then falls as a cosine."""
    warm = max(1, round(_WARM * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def _order(count: int, steps: int, generator: torch.Generator) -> list[int]:
    """Places among ``count`` for all steps: every one once, in a random order, then again."""
    rounds = -(-steps // count)
    order = [torch.randperm(count, generator=generator) for _ in range(rounds)]
    return torch.cat(order)[:steps].tolist()


class _Head(nn.Module):
    """The logits of hidden states, as a module of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.linear = model.get_output_embeddings()  # type: ignore[operator]
        self._model = (model,)  # a tuple, which does not register it

    def forward(self, hidden: Tensor) -> Tensor:
        return logits_of(self._model[0], hidden)


class _Learning:
    """A student and its optimizer, and what of both is kept between blocks of steps."""

    def __init__(self, student: _Student, rate: float) -> None:
        self.student, self.rate = student, rate
        self.optimizer = torch.optim.Adam(student.leaves.values(), lr=rate, betas=_BETAS)

    def step(self, loss: Tensor, share: float) -> None:
        """One step at a share of the rate."""
        self.optimizer.param_groups[0]["lr"] = self.rate * share
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.student.settle()

    def kept(self) -> State:
        found = {}
        for key, leaf in self.student.leaves.items():
            found[f"value.{key}"] = leaf.detach()
            for name, moment in self.optimizer.state[leaf].items():
                found[f"{name}.{key}"] = moment
        return {name: each.cpu().clone() for name, each in found.items()}

    def restore(self, kept: State) -> None:
        with torch.no_grad():
            for key, leaf in self.student.leaves.items():
                leaf.copy_(kept[f"value.{key}"])
                moments = {name: kept[f"{name}.{key}"].clone() for name in _MOMENTS}
                self.optimizer.state[leaf] = {
                    name: each if name == "step" else each.to(leaf.device)
                    for name, each in moments.items()
                }


def tune(flow: Flow, state: State, data: CalibrationData, steps: int, key: str) -> State:
    """``state`` with other scales and codebooks, learned from the windows of ``data``.

    steps : of at most 512 tokens each
    key : of the blocks of steps that ``data`` keeps
    """
    run, head = body(data.model), _Head(data.model)
    pieces = [each for ids in data.windows for each in ids.split(_TOKENS) if len(each) > 1]
    order = _order(len(pieces), steps, data.generator())
    with torch.no_grad():
        teacher = {
            place: run(pieces[place][None], use_cache=False).last_hidden_state[0]
            for place in data.track(sorted(set(order)), "unchanged model")
        }
    words = {name: each.detach() for name, each in head.named_parameters()}
    with Site(data.model) as site:
        student = _Student(flow, site, {name: x.to(pieces[0].device) for name, x in state.items()})
        student.install()
        fixed = {name: each.detach() for name, each in run.named_parameters()}
        learning = _Learning(student, _RATE)

        def logits(hidden: Tensor) -> Tensor:
            return torch.func.functional_call(head, words, (hidden,))

        def block(first: int) -> State:
            for step in range(first, min(first + _BLOCK, steps)):
                place = order[step]
                made = torch.func.functional_call(
                    run, fixed | student.weights(), (pieces[place][None],), {"use_cache": False}
                )
                hidden = made.last_hidden_state[0]
                loss = _divergence(logits(hidden), logits(teacher[place]))
                learning.step(loss, _share(step, steps))
            return learning.kept()

        for first in data.track(range(0, steps, _BLOCK), "tuning"):
            learning.restore(data.steps.once(f"{key}-{first}", functools.partial(block, first)))
        return student.words()
