"""K and V caches that Oaken is measured against: FP16, per token, after KIVI, after KVQuant."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from golden.config import bounded, flag, real
from golden.index.kmeans import kmeans_1d
from golden.llm.eval.calibration import CalibrationData
from golden.llm.eval.fake.grids import kivi_keys, kivi_values, uniform_grid
from golden.llm.eval.method import Method, Site, State
from golden.llm.patch import K, V

_SCALES = 32  # bits of two FP16 words
_SAMPLES = 1 << 16  # of a layer's K or V, for a codebook


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp16Kv(Method):
    """``fp16-kv``: K and V rounded to FP16, all else as it is."""

    pattern: ClassVar[str] = "fp16-kv"
    spellings: ClassVar[tuple[str, ...]] = ("fp16-kv",)
    caches: ClassVar[bool] = True

    pre_rope: bool = flag(False)

    def install(self, site: Site, state: State) -> None:
        for counters in site.kv_counters():
            for count in counters:
                count(1, 16)
        site.kv(lambda _layer, _kv, x: x.half().to(x.dtype), self.pre_rope)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RtnKv(Method):
    """``rtn-kvN``: every token of K and of V on its own grid of N bits from Min to Max."""

    pattern: ClassVar[str] = r"rtn-kv(?P<bits>\d{1,3})"
    spellings: ClassVar[tuple[str, ...]] = ("rtn-kv4",)
    caches: ClassVar[bool] = True

    bits: int = bounded(4, 1, 8)
    pre_rope: bool = flag(False)

    def install(self, site: Site, state: State) -> None:
        for layer, attention in enumerate(site.attentions):
            elements = int(attention.k_proj.out_features)  # type: ignore[arg-type,union-attr]
            for kv in (K, V):
                site.bits.add("kv", f"{layer}.{kv}", 1, self.bits + _SCALES / elements)
        site.kv(lambda _layer, _kv, x: uniform_grid(x, self.bits, -1), self.pre_rope)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KiviLike(Method):
    """After KIVI: K per channel over groups of tokens, V per token over groups of channels.

    Asymmetric grids of ``bits``, Min and step in FP16. Tokens that do not fill a group at the end
    of a window stay in FP16. KIVI's window of recent tokens in FP16 is left out: in a perplexity
    run every token would have another one; this is the harder case.
    """

    pattern: ClassVar[str] = "kivi-like"
    spellings: ClassVar[tuple[str, ...]] = ("kivi-like",)
    caches: ClassVar[bool] = True

    bits: int = bounded(4, 1, 8)
    group: int = bounded(32, 2, 1 << 20)
    pre_rope: bool = flag(False)

    def install(self, site: Site, state: State) -> None:
        counters = site.kv_counters()

        def tap(layer: int, kv: int, x: Tensor) -> Tensor:
            back, bits = (kivi_keys if kv == K else kivi_values)(x, self.bits, self.group)
            counters[layer][kv](x.numel(), bits)
            return back

        site.kv(tap, self.pre_rope)


def kv_gradients(data: CalibrationData, pre_rope: bool) -> list[State]:
    """K, V and their gradients of each window: k, v, gk, gv, each (layers, T, D) float32."""
    windows = []
    for i, ids in data.track(list(enumerate(data.windows)), "gradients of K and V"):

        def make(ids: Tensor = ids) -> State:
            found = data.kv_gradients(ids, pre_rope)
            return {
                name: torch.stack([layer[part] for layer in found])
                for part, name in enumerate(("k", "v", "gk", "gv"))
            }

        windows.append(data.steps.once(f"kv-gradients-{pre_rope}-{i}", make))
    return windows


@dataclasses.dataclass(frozen=True, kw_only=True)
class KvQuantLike(Method):
    """After KVQuant: non-uniform codebooks by Fisher weights, 1 % outliers in FP16, K before RoPE.

    - K: range of every channel offline; values beyond it are outliers
    - V: range of every token; its largest and smallest values are outliers
    - share: of outliers, both sides together; of a token of V round(share / 2 * D) a side
    - sink: first tokens of a window that stay in FP16 (KVQuant's attention sink option)

    Normalised to [-1, 1], both take the nearest of 2**bits centroids. Each layer has one codebook
    for K and one for V. Bits: an outlier takes 32 (value, position), a token a row pointer of 32,
    V two words of range.
    """

    pattern: ClassVar[str] = "kvquant-like"
    spellings: ClassVar[tuple[str, ...]] = ("kvquant-like",)
    calibrated: ClassVar[bool] = True
    caches: ClassVar[bool] = True

    bits: int = bounded(4, 1, 8)
    share: float = real(0.01, 0.0, 0.5)
    pre_rope: bool = flag(True)
    sink: int = bounded(0, 0, 1 << 20)

    def calibration_fields(self) -> dict[str, object]:
        return {"bits": self.bits, "share": self.share, "pre_rope": self.pre_rope}

    def calibrate(self, data: CalibrationData) -> State:
        """low, high (layers, D): K's channel ranges; codebook (layers, 2, 2**bits); all float32."""
        windows = kv_gradients(data, self.pre_rope)
        lows, highs, codebooks = [], [], []
        for layer in data.track(range(len(windows[0]["k"])), "codebooks"):
            k, v, gk, gv = (
                torch.cat([window[name][layer] for window in windows])
                for name in ("k", "v", "gk", "gv")
            )
            low, high = self._channel_range(k)
            lows.append(low)
            highs.append(high)
            pair = []
            for kv, x, gradient in ((K, k, gk), (V, v, gv)):
                least, most = (low, high) if kv == K else self._token_range(x)
                unit, outlier = _normalised(x, least, most)
                # In units of half the range, as the squared error of the value itself.
                weight = (gradient * ((most - least) / 2)) ** 2
                pair.append(self._codebook(unit[~outlier], weight[~outlier], data, 2 * layer + kv))
            codebooks.append(torch.stack(pair))
        return {
            "low": torch.stack(lows),
            "high": torch.stack(highs),
            "codebook": torch.stack(codebooks),
        }

    def _codebook(self, unit: Tensor, weight: Tensor, data: CalibrationData, salt: int) -> Tensor:
        if len(unit) > _SAMPLES:
            pick = torch.randperm(len(unit), generator=data.generator(salt))[:_SAMPLES]
            unit, weight = unit[pick], weight[pick]
        known = None if bool((weight == 0).all()) else weight
        found = kmeans_1d(unit, 1 << self.bits, known, seed=data.seed)
        return found.centroids.float()

    def _channel_range(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high) (D,) of (T, D), without share / 2 of the tokens at either end."""
        ordered = k.sort(0).values
        cut = min(round(len(k) * self.share / 2), (len(k) - 1) // 2)
        return ordered[cut], ordered[len(k) - 1 - cut]

    def _token_range(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(low, high) (..., 1) of (..., D): without the outliers, round(share / 2 * D) a side."""
        cut = round(v.shape[-1] * self.share / 2)
        high = v.topk(cut + 1, -1).values[..., -1:]
        low = v.topk(cut + 1, -1, largest=False).values[..., -1:]
        return low, high

    def install(self, site: Site, state: State) -> None:
        low, high, codebook = state["low"], state["high"], state["codebook"]
        midpoints = (codebook[..., 1:] + codebook[..., :-1]) / 2
        counters = site.kv_counters()

        def tap(layer: int, kv: int, x: Tensor) -> Tensor:
            least, most = (low[layer], high[layer]) if kv == K else self._token_range(x)
            outlier = (x < least) | (x > most)  # before the range is rounded to what is stored
            if kv == V:
                least, most = least.half().to(x.dtype), most.half().to(x.dtype)
            unit, _ = _normalised(x, least, most)
            index = torch.bucketize(unit, midpoints[layer, kv])
            value = codebook[layer, kv][index]
            half = (most - least) / 2
            back = value.mul_(half).add_(least + half)
            plain = x.half().to(x.dtype)
            outlier[:, : self.sink] = True
            f = float(outlier.float().mean())
            per_token = 32 + (_SCALES if kv == V else 0)
            counters[layer][kv](x.numel(), self.bits + 32 * f + per_token / x.shape[-1])
            return torch.where(outlier, plain, back)

        site.kv(tap, self.pre_rope)


def _normalised(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """(x on -1..1 between low and high, outlier mask); 0 where the range is empty."""
    half = (high - low) / 2
    unit = (x - (low + half)) / torch.where(half > 0, half, torch.inf)
    return unit, (x < low) | (x > high)
