"""Weights, K and V sorted by compare-swaps, clustered, and clustered again, after QET.

A cache encodes a token when it comes, so its codebooks are of other text: ``QetKv``. The paper
clusters a whole cache after its last token: ``QetKvNoncausal``.
"""

import dataclasses
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import ConfigError, bounded, flag, real
from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.method import Method, Site, State
from golden.llm.patch import K, V
from golden.qet.config import Budget, QetShape, Stage
from golden.qet.matrix import QetMatrix, StageCodes, encode, quantize, training_for

_ELEMENT_BITS = 16  # of a weight before
_LAYER = re.compile(r"\.(\d+)\.")  # the number of a layer in a name
_SALTS = 16  # seeds of a layer, more than it has stages

_SHARE = 0.7  # of the bits, for the first stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shaped(Method):
    """A matrix of FP16 within a budget. All bits count, with columns that fill a tile.

    rate: bits per element at most
    levels, residual_levels: compare-swaps of the matrix, and of its residual
    stages: 1 or 2, without and with a residual
    share: of the bits that the maps leave, for the first of two stages
    group: columns of a codebook
    entry_bits: of an element of an entry, 0: 16
    by_group: each codebook has a range of its own, not each stage
    iterations: of k-means
    """

    rate: int = bounded(4, 1, _ELEMENT_BITS)
    levels: int = bounded(3, 0, 5)
    residual_levels: int = bounded(0, 0, 5)
    stages: int = bounded(2, 1, 2)
    share: float = real(_SHARE, 0.01, 0.99)
    group: int = bounded(8, 1, 256)
    entry_bits: int = 10
    by_group: bool = flag(False)
    iterations: int = bounded(12, 0, 1 << 20)

    def __post_init__(self) -> None:
        for field, unused in (("residual_levels", 0), ("share", _SHARE)):
            if self.stages == 1 and getattr(self, field) != unused:
                self._refuse(field, f"{unused} with stages=1, which has no residual")
        if self.entry_bits:
            self._check_range("entry_bits", 2, 16)

    def shape(self, rows: int, columns: int) -> QetShape:
        """Shapes a matrix, with the largest codebooks at the rate. ConfigError: none fits."""
        share = Fraction(self.share).limit_denominator(1000)
        levels = (self.levels, self.residual_levels)[: self.stages]
        asked = QetShape(
            rows=rows,
            columns=columns,
            element_bits=_ELEMENT_BITS,
            group=self.group,
            stages=tuple(Stage(levels=each) for each in levels),
            entry_bits=self.entry_bits,
            by_group=self.by_group,
        )
        shares = (share, 1 - share) if self.stages == 2 else (Fraction(1),)
        return Budget(ratio=Fraction(_ELEMENT_BITS, self.rate), shares=shares).solve(asked)

    def matrix(self, matrix: Tensor, seed: int = 0, shape: QetShape | None = None) -> QetMatrix:
        """(rows, columns) with codebooks of its own; shape: in the place of that of its size.

        ConfigError: the size does not reach the rate.
        """
        shape = shape or self.shape(*matrix.shape)
        return quantize(matrix.float(), shape, training_for(shape, seed, self.iterations))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qet(_Shaped):
    """``qet-8b``, ``qet-4b``, ``qet-3b``: weights with at most so many bits each, after QET.

    Codebooks are found without inputs of the model.

    together: neighbouring layers whose matrices of a kind share codebooks. They are one matrix with
    the rows of all, so the budget gives them more entries; 1: each matrix has its own
    """

    pattern: ClassVar[str] = r"qet-(?P<rate>\d{1,2})b"
    spellings: ClassVar[tuple[str, ...]] = ("qet-8b", "qet-4b", "qet-3b")
    calibrated: ClassVar[bool] = True

    together: int = bounded(1, 1, 1024)

    @property
    def replaces_weights(self) -> bool:
        return True

    def calibrate(self, data: CalibrationData) -> State:
        """Quantizes each layer: words of the restored matrix, and the bits that it took.

        ConfigError: a size does not reach the rate, or widths differ that share codebooks.
        """
        state: State = {}
        numbers = {name: number for number, name in enumerate(data.linears)}
        for names in self.shared(list(data.linears)):
            own = [data.linears[name].weight.detach() for name in names]
            seed = data.seed_of(numbers[names[0]] * _SALTS)
            if len({weight.shape[1] for weight in own}) > 1:
                raise ConfigError(f"{names[0]}: together: {names[-1]} has other inputs")
            try:
                made = self.matrix(torch.cat(own), seed)
            except ConfigError as error:
                raise ConfigError(f"{names[0]}: {error}") from None
            rows = [len(weight) for weight in own]
            words = made.dequantized().to(torch.int16).cpu().split(rows)
            for name, count, part in zip(names, rows, words, strict=True):
                state[f"{name}.words"] = part.clone()
                bits = made.shape.stored_bits * count / sum(rows)
                state[f"{name}.bits"] = torch.tensor(bits, dtype=torch.float64)
        return state

    def shared(self, names: Sequence[str]) -> list[list[str]]:
        """Names of matrices that share codebooks: a kind, in ``together`` layers in a row."""
        groups: dict[tuple[str, int], list[str]] = {}
        for name in names:
            found = _LAYER.search(name)
            layer = int(found[1]) if found else 0
            kind = name if found is None else f"{name[: found.start()]}.{name[found.end() :]}"
            groups.setdefault((kind, layer // self.together), []).append(name)
        return list(groups.values())

    def install(self, site: Site, state: State) -> None:
        for name, linear in site.linears.items():
            words = state[f"{name}.words"].long() & 0xFFFF
            weight = float_from_bits(words, FP16).float()
            site.weight(name, weight.to(linear.weight.device))
            count = linear.weight.numel()
            site.bits.add("weights", name, count, float(state[f"{name}.bits"]) / count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetKv(_Shaped):
    """``qet-kv-4b``: K and V with codebooks of other text, as a cache can have them.

    The matrix is K or V of a layer: tokens by channels of all heads. Each has codebooks of its own.
    A token's maps and codes depend on the token alone.

    per_entry: calibration tokens that each entry needs; fewer bound the entries
    context: tokens of one sequence, whose bits take all codebooks, and at which bits are counted
    pre_rope: K before RoPE
    """

    pattern: ClassVar[str] = r"qet-kv-(?P<rate>\d{1,2})b"
    spellings: ClassVar[tuple[str, ...]] = ("qet-kv-4b",)
    calibrated: ClassVar[bool] = True
    caches: ClassVar[bool] = True
    relative_time: ClassVar[float] = 4.0

    per_entry: int = bounded(8, 1, 1 << 20)
    context: int = bounded(32768, 1, 1 << 24)
    pre_rope: bool = flag(False)

    def books(self, kv: Tensor, seed: int = 0) -> QetMatrix:
        """Trains codebooks on calibration's K or V (tokens, channels).

        ConfigError: no codebook reaches the rate.
        """
        tokens, channels = kv.shape
        asked = self.shape(self.context, channels)
        most = max(1, tokens // self.per_entry)
        stages = tuple(Stage(levels=s.levels, entries=min(s.entries, most)) for s in asked.stages)
        return self.matrix(kv, seed, dataclasses.replace(asked, rows=tokens, stages=stages))

    def calibrate(self, data: CalibrationData) -> State:
        """Trains for K and V of each layer: entries and ranges of each stage, and the exponent."""
        kv = self._captured(data)
        state: State = {}
        label = "-".join(map(str, self.calibration_fields().values()))
        for layer in data.track(range(len(kv)), "codebooks"):
            for which in (K, V):

                def make(layer: int = layer, which: int = which) -> State:
                    found = self._books(data, kv[layer, which], 2 * layer + which)
                    stored: State = {"exponent": torch.tensor(found.exponent)}
                    for number, stage in enumerate(found.stages):
                        stored[f"entries.{number}"] = stage.entries.int().cpu()
                        stored[f"ranges.{number}"] = stage.ranges.cpu()
                    return stored

                found = data.steps.once(f"qet-books-{label}-{layer}-{which}", make)
                state |= {f"{layer}.{which}.{name}": each for name, each in found.items()}
        return state

    def _captured(self, data: CalibrationData) -> Tensor:
        """K and V of all windows: (layers, 2, tokens, channels) float16."""
        windows = []
        for i, ids in data.track(list(enumerate(data.windows)), "K and V"):

            def make(ids: Tensor = ids) -> State:
                pairs = [torch.stack(pair) for pair in data.kv(ids, self.pre_rope)]
                return {"kv": torch.stack(pairs).half().cpu()}

            windows.append(data.steps.once(f"qet-kv-{self.pre_rope}-{i}", make)["kv"])
        return torch.cat(windows, 2)

    def _books(self, data: CalibrationData, kv: Tensor, number: int) -> QetMatrix:
        try:
            device = next(data.model.parameters()).device
            return self.books(kv.to(device), data.seed_of(number * _SALTS))
        except ConfigError as error:
            raise ConfigError(f"{'KV'[number % 2]} of layer {number // 2}: {error}") from None

    def stored(self, state: State, layer: int, which: int, site: Site) -> QetMatrix:
        """The codebooks of ``calibrate`` as a matrix of ``context`` rows without codes."""
        columns = int(site.attentions[layer].k_proj.out_features)  # type: ignore[arg-type,union-attr]
        device = next(site.model.parameters()).device
        own = {
            name.removeprefix(f"{layer}.{which}."): each.to(device)
            for name, each in state.items()
            if name.startswith(f"{layer}.{which}.")
        }
        none = torch.empty(0, dtype=torch.int64, device=device)
        shape = self.shape(self.context, columns)
        stages = []
        for number, asked in enumerate(shape.stages):
            entries = own[f"entries.{number}"].long()
            stage = dataclasses.replace(asked, entries=entries.shape[1])
            stages.append(StageCodes(stage, entries, own[f"ranges.{number}"], none, []))
        shape = dataclasses.replace(shape, stages=tuple(each.stage for each in stages))
        return QetMatrix(shape, tuple(stages), int(own["exponent"]))

    def install(self, site: Site, state: State) -> None:
        counters = site.kv_counters()
        books = [
            [self.stored(state, layer, which, site) for which in (K, V)]
            for layer in range(len(site.attentions))
        ]

        def tap(layer: int, which: int, x: Tensor) -> Tensor:
            """(B, T, channels)"""
            own = books[layer][which]
            shape = own.shape
            counters[layer][which](x.numel(), shape.stored_bits / (shape.rows * shape.columns))
            return encode(x.flatten(0, 1), own).real().to(x.dtype).reshape(x.shape)

        site.kv(tap, self.pre_rope)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QetKvNoncausal(_Shaped):
    """``qet-kv-noncausal-4b``: K and V of each window with codebooks of the window itself.

    NOT causal: the codes of a token depend on tokens after it, as codebooks are found once all are
    known. So no cache can work like this; the paper measures it. Every bit of the codebooks counts
    for the window.

    pre_rope: K before RoPE
    """

    pattern: ClassVar[str] = r"qet-kv-noncausal-(?P<rate>\d{1,2})b"
    spellings: ClassVar[tuple[str, ...]] = ("qet-kv-noncausal-4b",)
    caches: ClassVar[bool] = True
    relative_time: ClassVar[float] = 8.0

    pre_rope: bool = flag(False)

    def install(self, site: Site, state: State) -> None:
        counters = site.kv_counters()

        def tap(layer: int, which: int, x: Tensor) -> Tensor:
            """(B, T, channels), each sequence a matrix of its own."""
            back = torch.empty_like(x)
            for own, one in zip(back, x, strict=True):
                try:
                    made = self.matrix(one, (2 * layer + which) * _SALTS)
                except ConfigError as error:
                    raise ConfigError(f"{'KV'[which]} of layer {layer}: {error}") from None
                counters[layer][which](one.numel(), made.shape.stored_bits / one.numel())
                own.copy_(made.real())
            return back

        site.kv(tap, self.pre_rope)
