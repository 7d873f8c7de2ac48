"""MILLION's K and V: product quantization, one code for each part of a vector of a head.

Source: MILLION, section III. Equation 4 writes the code as the argmin of ``|K x C|``. The nearest
entry is meant, and equation 5 decodes it so. Footnote 2 swaps the two settings: at head size 128,
(M, nbits) = (64, 8) takes 4 bits per element and (32, 12) takes 3.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, choice, flag, real
from golden.fp16.ops import bits_from_float
from golden.index.lloyd import Training
from golden.index.packet import denormalised, normalised
from golden.index.pq import ProductQuantizer, ProductShape, exact_codes
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.patch import Attention, K, Scores, V

_RATES = {4: (2, 8), 3: (4, 12), 2: (4, 8)}  # bits per element: elements of a part, bits of a code
_RATE = 4  # where neither rate nor subspaces and bits are given
_QUERIES = 256  # whose scores are held at a time
_OUTLIER = 32  # bits of an outlier: value and position
_POINTER = 32  # bits of a token's row pointer into the outliers
_EXPONENT = 8  # bits of a codebook's scale


@dataclasses.dataclass(frozen=True, kw_only=True)
class Million(Method):
    """``million-4b``, ``million-3b``: K and V as codes of trained codebooks.

    rate: bits per element, 4 (0 too), 3 or 2: 2 elements a code of 8 bits, 4 of 12, 4 of 8
    subspaces, bits: M and nbits in place of ``rate``; both or neither
    scope: a pair of codebooks, of K and V, for the ``model``, for each ``layer`` or each ``head``
    pre_rope: K before RoPE, for accuracy only: tables need K after it
    window, policy: recent tokens that a query sees exactly, itself included. ``sliding``: the
        latest ``window``. ``flush``: 1 to ``window``, as all become codes when there are ``window``
    sink: first tokens that every query sees exactly
    share: of each layer's values of largest magnitude, stored apart; codes see 0 in their place
    keys, values: which of K and V is quantized
    few: train with fewer than 39 vectors per entry
    vectors: most training vectors per entry, drawn by the seed
    context: tokens of a sequence at which stored bits are counted

    Without a window every query reads the codes of every token, its own included. This is harder
    than equation 6 of the paper, where a token sees itself exactly (``window=1``). Tokens that are
    exact are FP16.

    Bits: codes, exact tokens at 16 bits, outliers as in ``kvquant-like``, and the codebooks' share
    of ``context`` tokens of one sequence.
    """

    relative_time: ClassVar[float] = 1.4
    pattern: ClassVar[str] = r"million(?:-(?P<rate>\d{1,2})b)?"
    spellings: ClassVar[tuple[str, ...]] = ("million-4b", "million-3b")
    calibrated: ClassVar[bool] = True
    caches: ClassVar[bool] = True

    rate: int = 0
    subspaces: int = bounded(0, 0, 256)
    bits: int = bounded(0, 0, 16)
    scope: str = choice("model", ("model", "layer", "head"))
    pre_rope: bool = flag(False)
    window: int = bounded(0, 0, 1 << 20)
    policy: str = choice("flush", ("flush", "sliding"))
    sink: int = bounded(0, 0, 1 << 20)
    share: float = real(0.0, 0.0, 0.5)
    keys: bool = flag(True)
    values: bool = flag(True)
    few: bool = flag(False)
    vectors: int = bounded(64, 1, 1 << 20)
    context: int = bounded(32768, 1, 1 << 24)

    def __post_init__(self) -> None:
        if self.rate:
            self._check_choice("rate", tuple(_RATES))
        if (self.subspaces == 0) != (self.bits == 0):
            self._refuse("bits", "given together with subspaces")
        if self.policy != "flush" and not self.window:
            self._refuse("policy", "flush without a window, which alone has a policy")
        if self.pre_rope and self.window:
            self._refuse("window", "0 where K is quantized before RoPE")
        if not (self.keys or self.values):
            self._refuse("values", "true where keys is false")

    def shape(self, head_dim: int) -> ProductShape:
        """ConfigError: M does not divide the head size, a code of that many bits, another rate."""
        if self.subspaces:
            if self.rate and self.rate * head_dim != self.subspaces * self.bits:
                rate = f"{self.subspaces * self.bits / head_dim:g}"
                self._refuse("rate", f"subspaces * bits / {head_dim} = {rate}, or left out")
            return ProductShape(dim=head_dim, subspaces=self.subspaces, bits=self.bits)
        sub, bits = _RATES[self.rate or _RATE]
        return ProductShape(dim=head_dim, subspaces=max(1, head_dim // sub), bits=bits)

    # ---- offline

    def calibration_fields(self) -> dict[str, object]:
        named = ("subspaces", "bits", "scope", "pre_rope", "share", "few", "vectors")
        rate = 0 if self.subspaces else self.rate or _RATE
        return {"rate": rate, **{field: getattr(self, field) for field in named}}

    def calibrate(self, data: CalibrationData) -> State:
        """Codebooks of K and V of all windows.

        words: (books, 2, M, entries, d / M) int16, the bits of FP16 words; exponent: (books, 2);
        threshold: (layers, 2), magnitudes from which on values are outliers, infinite without.
        """
        with Site(data.model) as site:
            head_dim = int(site.attentions[0].head_dim)  # type: ignore[arg-type]
        shape = self.shape(head_dim)
        kv = self._captured(data, head_dim)
        importance = self._importance(data, head_dim)
        threshold = torch.full(kv.shape[:2], torch.inf)
        if self.share:
            for part, own in zip(kv.flatten(0, 1), threshold.view(-1, 1), strict=True):
                magnitude = part.float().abs().flatten()
                kept = max(1, round(magnitude.numel() * (1 - self.share)))
                own[0] = magnitude.kthvalue(kept).values
        books = list(self._books(kv.shape[0], kv.shape[3]))
        words, exponents = [], []
        label = "-".join(map(str, self.calibration_fields().values()))
        for number, (layers, heads) in enumerate(data.track(books, "codebooks")):
            for which in (K, V):

                def make(
                    which: int = which, number: int = number, layers=layers, heads=heads
                ) -> State:
                    part = kv[layers, which][..., heads, :]
                    limit = threshold[layers, which].reshape(-1, 1, 1, 1)
                    weight = None
                    if importance is not None:
                        weight = importance[layers, which][..., heads, :]
                    return self._book(part, weight, limit, shape, data, 2 * number + which)

                found = data.steps.once(f"million-book-{label}-{number}-{which}", make)
                words.append(found["words"])
                exponents.append(found["exponent"])
        return {
            "words": torch.stack(words).unflatten(0, (-1, 2)),
            "exponent": torch.stack(exponents).unflatten(0, (-1, 2)),
            "threshold": threshold,
        }

    def _importance(self, data: CalibrationData, head_dim: int) -> Tensor | None:
        """Weights of the values of ``_captured`` in training, of the same shape; None: equal."""
        return None

    def _training(self, seed: int) -> Training:
        return Training(seed=seed, few=self.few)

    def _captured(self, data: CalibrationData, head_dim: int) -> Tensor:
        """K and V of all windows: (layers, 2, tokens, heads, d) float16."""
        windows = []
        for i, ids in data.track(list(enumerate(data.windows)), "K and V"):

            def make(ids: Tensor = ids) -> State:
                pairs = [torch.stack(pair) for pair in data.kv(ids, self.pre_rope)]
                return {"kv": torch.stack(pairs).half().cpu()}

            windows.append(data.steps.once(f"million-kv-{self.pre_rope}-{i}", make)["kv"])
        return torch.cat(windows, 2).unflatten(-1, (-1, head_dim))

    def _books(self, layers: int, heads: int) -> Iterator[tuple[slice, slice]]:
        """(layers, heads) of each pair of codebooks."""
        if self.scope == "model":
            yield slice(None), slice(None)
            return
        for layer in range(layers):
            if self.scope == "layer":
                yield slice(layer, layer + 1), slice(None)
            else:
                for head in range(heads):
                    yield slice(layer, layer + 1), slice(head, head + 1)

    def _book(
        self,
        kv: Tensor,
        weight: Tensor | None,
        limit: Tensor,
        shape: ProductShape,
        data: CalibrationData,
        salt: int,
    ) -> State:
        """A codebook of (layers, tokens, heads, d) values, those beyond ``limit`` left out."""
        vectors = torch.where(kv.float().abs() > limit, 0, kv.float()).flatten(0, -2)
        weight = None if weight is None else weight.flatten(0, -2)
        shape.check_vectors(len(vectors), self.few)
        most = self.vectors * shape.entries
        if len(vectors) > most:
            pick = torch.randperm(len(vectors), generator=data.generator(salt))[:most]
            vectors, weight = vectors[pick], None if weight is None else weight[pick]
        training = self._training(data.seed_of(salt))
        device = next(data.model.parameters()).device
        weight = None if weight is None else weight.to(device)
        found = ProductQuantizer.train(vectors.to(device), shape, weight, training)
        words, exponent = normalised(found.codebook.cpu())
        return {"words": words.to(torch.int16), "exponent": torch.tensor(exponent)}

    # ---- at work

    def install(self, site: Site, state: State) -> None:
        head_dim = int(site.attentions[0].head_dim)  # type: ignore[arg-type]
        shape = self.shape(head_dim)
        words = state["words"].long() & 0xFFFF
        exponents = state["exponent"].tolist()
        device = next(site.model.parameters()).device
        books = torch.stack(
            [
                denormalised(words[i, which], exponents[i][which]).float()
                for i in range(len(words))
                for which in (K, V)
            ]
        ).unflatten(0, (-1, 2)).to(device)  # fmt: skip
        threshold = state["threshold"].to(device)
        counters = site.kv_counters()
        exact = [f"{name}.self_attn" in site.exact for name in site.layer_names]
        layers = len(site.attentions)
        used = (self.keys, self.values)

        def codes(layer: int, which: int, parts: Tensor, head: int) -> Tensor:
            """(n, d) float values of FP16 to (n, d) decoded ones."""
            heads = len(books) // layers if self.scope == "head" else 1
            number = 0 if self.scope == "model" else layer * heads + head
            one = ProductQuantizer(books[number, which])
            fast = one.decode(one.encode(parts))
            if not exact[layer]:
                return fast
            found = exact_codes(
                bits_from_float(parts), words[number, which], exponents[number][which], shape.bits
            )
            back = one.decode(found)
            site.compare(f"{site.layer_names[layer]}.self_attn", fast, back)
            return back

        def tap(layer: int, which: int, x: Tensor) -> Tensor | None:
            """(B, T, heads * d)"""
            if not used[which]:
                counters[layer][which](x.numel(), site.bits.untouched)
                return None
            half = x.half().to(x.dtype)
            outlier = half.abs() > threshold[layer, which]
            vectors = torch.where(outlier, 0, half).unflatten(-1, (-1, head_dim))
            if self.scope == "head":
                back = torch.stack(
                    [
                        codes(layer, which, each.flatten(0, 1), head).reshape(each.shape)
                        for head, each in enumerate(vectors.unbind(2))
                    ],
                    2,
                )
            else:
                back = codes(layer, which, vectors.flatten(0, 2), 0).reshape(vectors.shape)
            found = torch.where(outlier, half, back.flatten(2))
            found[:, : self.sink] = half[:, : self.sink]
            share = float(outlier.float().mean())
            heads = layers * vectors.shape[2] if self.scope == "model" else vectors.shape[2]
            served = 1 if self.scope == "head" else heads
            counters[layer][which](x.numel(), self._stored_bits(shape, served, share, x.shape[-1]))
            return found

        if self.window:
            site.attention(self._attention(tap))
        else:
            site.kv(tap, self.pre_rope)

    def _stored_bits(self, shape: ProductShape, served: int, share: float, width: int) -> float:
        """Bits per element at ``context`` tokens; served: vectors per token of one codebook."""
        code = shape.subspaces * shape.bits / shape.dim
        if self.share:
            code += _OUTLIER * share + _POINTER / width
        recent = (self.window + 1) / 2 if self.window and self.policy == "flush" else self.window
        exact = min(1.0, (self.sink + recent) / self.context)
        book = 16 * shape.entries * shape.dim + _EXPONENT
        return exact * 16 + (1 - exact) * code + book / (self.context * served * shape.dim)

    def _attention(
        self, tap: Callable[[int, int, Tensor], Tensor | None]
    ) -> Attention:
        def stored(layer: int, which: int, x: Tensor) -> Tensor:
            """(B, heads, T, d) as the codes give it."""
            back = tap(layer, which, x.transpose(1, 2).flatten(2))
            if back is None:
                return x
            return back.unflatten(-1, (x.shape[1], -1)).transpose(1, 2)

        def function(layer: int, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
            recent = recent_tokens(q.shape[2], self.sink, self.window, self.policy).to(q.device)
            coded = stored(layer, K, k), stored(layer, V, v)
            k, v = (x.half().to(x.dtype) if used else x
                    for x, used in ((k, self.keys), (v, self.values)))  # fmt: skip
            return attend(q, (k, v), coded, recent, scores)

        return function


def recent_tokens(tokens: int, sink: int, window: int, policy: str) -> Tensor:
    """Counts the latest tokens that each query sees exactly, itself included: (tokens,) int64.

    Among the tokens after the sinks, ``sliding`` keeps the latest ``window``. ``flush`` encodes all
    of them once ``window`` are there and the next one comes, so 1 to ``window`` are exact.
    """
    own = torch.arange(tokens) - sink  # of tokens after the sinks
    if policy == "sliding":
        return (own + 1).clamp(0, window)
    return torch.where(own >= 0, own % window + 1, 0)


def attend(
    q: Tensor,
    exact: tuple[Tensor, Tensor],
    coded: tuple[Tensor, Tensor],
    recent: Tensor,
    rule: Scores,
) -> Tensor:
    """Attention where query t reads its ``recent[t]`` latest tokens exactly.

    q: (B, heads, T, d); exact, coded: (K, V), each (B, kv_heads, T, d). One softmax serves both
    kinds of tokens, of which a query sees those that ``rule`` lets it see.
    """
    group = q.shape[1] // exact[0].shape[1]
    k, v, k_coded, v_coded = (x.repeat_interleave(group, 1) for x in (*exact, *coded))
    place = torch.arange(q.shape[2], device=q.device)
    parts = []
    for start in range(0, q.shape[2], _QUERIES):
        own = place[start : start + _QUERIES]
        last = int(own[-1]) + 1
        ago = own[:, None] - place[:last]
        is_recent = ago < recent[own][:, None]
        one = q[:, :, own]
        scores = torch.where(
            is_recent, one @ k[:, :, :last].mT, one @ k_coded[:, :, :last].mT
        )  # fmt: skip
        hidden = ~rule.seen(start, last, q.device)
        weights = rule.softmax(rule.capped(scores * rule.scaling).masked_fill(hidden, -torch.inf))
        near = weights * is_recent
        parts.append(near @ v[:, :, :last] + (weights - near) @ v_coded[:, :, :last])
    return torch.cat(parts, 2)
