"""The measurements and tables of ``python -m golden.llm.reports.oaken``.

Thresholds come from calibration text or from a file of golden.llm.oaken.profile. All figures are
measured on other text: the shares of the groups, the error of K and V, the bits stored and read.
On request the report adds the perplexity with restored values of K and V in every attention. The
quantizations are methods of golden.llm.eval, on K and V that are FP16 words.
"""

import argparse
import dataclasses
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.llm import text as own_text
from golden.llm.capture import capture_kv
from golden.llm.checkpoint import check_layers, layer_count, load, read_text, windows
from golden.llm.eval.method import Method, Site, State
from golden.llm.eval.perplexity import loss
from golden.llm.methods.kv import Fp16Kv, KiviLike, RtnKv
from golden.llm.methods.oaken import Oaken, count_block
from golden.llm.patch import KVTap, attention_layers
from golden.oaken.format import bits_read, effective_bits
from golden.oaken.groups import Ratios, group_index
from golden.oaken.thresholds import KV_NAMES, Profile, ProfileError, profile_kv


def nmse(x: Tensor, restored: Tensor) -> float:
    """Sum of squared errors over the sum of squares, of words."""
    value = float_from_bits(x)
    return float(((float_from_bits(restored) - value) ** 2).sum() / (value**2).sum())


@dataclasses.dataclass(frozen=True)
class Installed:
    """A method and its state, as ``Method.install`` takes them."""

    method: Method
    state: State = dataclasses.field(default_factory=dict)


class WordSite(Site):
    """K and V are FP16 words before and after each tap, as a cache stores them.

    Taps get the words' values in float64 and so quantize without further roundings of their input.
    Methods with exact arithmetic use it in every layer. taps: each takes (B, T, D) words.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.exact = frozenset(f"{name}.self_attn" for name in self.layer_names)
        self.taps: list[KVTap] = []

    def kv(self, tap: KVTap, pre_rope: bool = False) -> None:
        def of_words(layer: int, kv: int, x: Tensor) -> Tensor:
            back = tap(layer, kv, float_from_bits(x))
            return x if back is None else bits_from_float(back)

        self.taps.append(of_words)
        super().kv(
            lambda layer, kv, x: float_from_bits(of_words(layer, kv, bits_from_float(x))),
            pre_rope,
        )


def methods(profiles: dict[str, Profile], pre_rope: bool = False) -> dict[str, Installed]:
    """Maps names to Oaken with each profile (by ratios), its literal forms, and the baselines."""

    def oaken(profile: Profile, **fields: Any) -> Installed:
        method = Oaken(ratios=str(profile.ratios), pre_rope=pre_rope, **fields)
        return Installed(method, {"intervals": profile.intervals})

    named: dict[str, Installed] = {}
    for ratios, profile in profiles.items():
        if profile.ratios.groups <= 3:
            named[f"Oaken {ratios}"] = oaken(profile)
        else:
            named[f"Oaken {ratios}, 5-bit outliers"] = oaken(profile, outlier_bits=5)
            named[f"Oaken {ratios}, 4-bit outliers"] = oaken(profile, outlier_bits=4)
    first, profile = next(iter(profiles.items()))
    named[f"literal {first}, scale per token"] = oaken(profile, mode="artifact")
    named[f"literal {first}, scale per window"] = oaken(profile, mode="artifact-window")
    named["uniform per token, 4 bits"] = Installed(RtnKv(bits=4, pre_rope=pre_rope))
    named["uniform per token, 5 bits"] = Installed(RtnKv(bits=5, pre_rope=pre_rope))
    named["like KIVI, 4 bits"] = Installed(KiviLike(bits=4, pre_rope=pre_rope))
    named["FP16"] = Installed(Fp16Kv(pre_rope=pre_rope))
    return named


@dataclasses.dataclass(frozen=True)
class Measured:
    """One method: mean over layers of the NMSE of K and of V, and of the bits stored."""

    name: str
    nmse_k: float
    nmse_v: float
    bits_stored: float
    perplexity: float | None = None


def measure(
    model: nn.Module,
    named: dict[str, Installed],
    captured: list[tuple[Tensor, Tensor]],
    layers: list[int],
) -> list[Measured]:
    """captured: (K, V) words of every layer of the unchanged model, (T, D) each."""
    found = []
    for name, each in named.items():
        error: list[list[float]] = [[], []]
        with WordSite(model) as site:
            each.method.install(site, each.state)
            (tap,) = site.taps
            for layer in layers:
                for kv in (0, 1):
                    x = captured[layer][kv]
                    back = tap(layer, kv, x[None])
                    assert back is not None
                    error[kv].append(nmse(x, back[0]))
            stored = site.bits.mean("kv")
        mean_k, mean_v = (sum(each) / len(each) for each in error)
        found.append(Measured(name, mean_k, mean_v, stored))
    return found


def perplexity(model: nn.Module, sequences: list[Tensor], installed: Installed) -> float:
    """exp of the mean next-token loss over sequences of token ids, each on its own."""
    with WordSite(model) as site:
        installed.method.install(site, installed.state)
        return loss(model, (ids[None] for ids in sequences)).perplexity


def fractions(
    profile: Profile, captured: list[tuple[Tensor, Tensor]], layers: list[int]
) -> list[list[list[float]]]:
    """[layer][kv][group] shares, the outermost group first."""
    count = profile.ratios.intervals + 1
    return [
        [
            (
                torch.bincount(
                    group_index(captured[layer][kv], profile.intervals[layer, kv]).flatten(),
                    minlength=count,
                ).double()
                / captured[layer][kv].numel()
            ).tolist()
            for kv in (0, 1)
        ]
        for layer in layers
    ]


def arithmetic_bits(f: Fraction | float = Fraction(1, 10), block: int = 64) -> list[dict[str, Any]]:
    """Bits per element at f outliers, for vectors of other models."""
    rows = []
    for heads, head_dim in ((3, 64), (8, 128), (32, 128)):
        elements = heads * head_dim
        rows.append(
            {
                "D": elements,
                "heads": heads,
                "stored": effective_bits(f, elements, block),
                "read, one head at a time": bits_read(f, heads, head_dim, block, heads_read=1),
                "read, all heads": bits_read(f, heads, head_dim, block),
            }
        )
    return rows


def _table(header: list[str], rows: list[list[Any]]) -> str:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    lines += [" | ".join(cell(value) for value in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def print_report(report: dict[str, Any]) -> None:
    made = report["profile"]
    print(f"thresholds: {report['ratios']}, {made}")
    print(f"measured on: {report['measured on']}\n")
    groups = report["groups"]
    rows = [
        [name, kind, *values]
        for name, found in report["fractions"].items()
        for kind, values in found.items()
    ]
    print(_table(["vector", "over layers", *groups, "f"], rows) + "\n")
    head = ["method", "NMSE of K", "NMSE of V", "bits stored"]
    has_loss = report["methods"][0]["perplexity"] is not None
    rows = [
        [each["name"], each["nmse_k"], each["nmse_v"], f"{each['bits_stored']:.3f}"]
        + ([f"{each['perplexity']:.3f}"] if has_loss else [])
        for each in report["methods"]
    ]
    print(_table(head + (["perplexity"] if has_loss else []), rows) + "\n")
    rows = [
        [f"{v:.3f}" if isinstance(v, float) else v for v in row.values()] for row in report["bits"]
    ]
    print(f"bits per element at the measured f = {report['f']:.4f} (this model)")
    print(_table(list(report["bits"][0]), rows[:1]) + "\n")
    rows = [
        [f"{v:.3f}" if isinstance(v, float) else v for v in row.values()]
        for row in report["bits at 4/90/6"]
    ]
    print("bits per element at f = 0.1, by arithmetic")
    print(_table(list(report["bits"][0]), rows))


def _profile_all(
    options: argparse.Namespace, checkpoint: Any, calibration: str | None
) -> dict[str, Profile]:
    """The file's profile, or one of every requested ratio from the calibration text."""
    if options.thresholds is not None:
        profile = Profile.load(options.thresholds)
        if profile.pre_rope != options.pre_rope:
            raise ProfileError(f"{options.thresholds}: K after and before RoPE do not mix")
        return {str(profile.ratios): profile}
    parts = windows(checkpoint, calibration, options.windows, options.tokens)
    captured = [capture_kv(checkpoint.model, ids, options.pre_rope) for ids in parts]
    made = {
        "text": options.calibration.name if options.calibration else "golden.llm.text.CALIBRATION",
        "tokens per window": options.tokens,
    }
    found = {}
    for text in options.ratios:
        ratios = Ratios.parse(text)
        found[str(ratios)] = profile_kv(captured, ratios, options.pre_rope, made)
    return found


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Everything as plain values; CheckpointError, ConfigError or ProfileError in one line."""
    for text in options.ratios:
        Ratios.parse(text)
    calibration, evaluation = read_text(options.calibration), read_text(options.text)
    check_layers(options.layers or [], layer_count(options.model))
    checkpoint = load(options.model)
    profiles = _profile_all(options, checkpoint, calibration)
    profile = next(iter(profiles.values()))
    count = len(attention_layers(checkpoint.model))
    if profile.layers != count:
        raise ProfileError(f"thresholds of {profile.layers} layers, the model has {count}")
    layers = list(range(count)) if options.layers is None else options.layers
    check_layers(layers, count)
    evaluation = own_text.EVALUATION if evaluation is None else evaluation
    # Where one text serves for both, what was calibrated on is skipped.
    same = options.text is not None and options.text == options.calibration
    skip = options.windows * options.tokens if same else 0
    ids = windows(checkpoint, evaluation, 1, options.evaluation, skip)[0]
    captured = [
        tuple(bits_from_float(x) for x in pair)
        for pair in capture_kv(checkpoint.model, ids, options.pre_rope)
    ]
    attention = attention_layers(checkpoint.model)[0]
    head_dim = int(attention.head_dim)  # type: ignore[arg-type]
    elements = captured[0][0].shape[-1]
    heads = elements // head_dim
    block = count_block(head_dim)
    named = methods(profiles, options.pre_rope)
    measured = measure(checkpoint.model, named, captured, layers)  # type: ignore[arg-type]
    if options.perplexity:
        parts = windows(checkpoint, evaluation, options.perplexity, options.evaluation, skip)
        measured = [
            dataclasses.replace(
                each,
                perplexity=perplexity(checkpoint.model, parts, named[each.name]),
            )
            for each in measured
        ]
    shares = torch.tensor(fractions(profile, captured, layers))  # type: ignore[arg-type]
    middle = profile.ratios.middle_index
    by_vector = {}
    for kv, name in enumerate(KV_NAMES):
        own = shares[:, kv]
        own = torch.cat([own, 1 - own[:, middle : middle + 1]], dim=1)
        by_vector[name.upper()] = {
            "mean": own.mean(0).tolist(),
            "smallest": own.amin(0).tolist(),
            "largest": own.amax(0).tolist(),
        }
    f = float(1 - shares[:, :, middle].mean())
    return {
        "ratios": str(profile.ratios),
        "profile": profile.made,
        "measured on": {
            "text": options.text.name if options.text else "golden.llm.text.EVALUATION",
            "tokens": options.evaluation,
            "K": "before RoPE" if options.pre_rope else "after RoPE",
            "layers": layers,
            "perplexity windows": options.perplexity,
        },
        "groups": [
            "outer" if i < middle else "middle" if i == middle else "inner"
            for i in range(profile.ratios.intervals + 1)
        ],
        "fractions": by_vector,
        "methods": [dataclasses.asdict(each) for each in measured],
        "f": f,
        "bits": [
            {
                "D": elements,
                "heads": heads,
                "stored": effective_bits(f, elements, block),
                "read, one head at a time": bits_read(f, heads, head_dim, block, heads_read=1),
                "read, all heads": bits_read(f, heads, head_dim, block),
            }
        ],
        "bits at 4/90/6": arithmetic_bits(),
    }
