"""The estimate of a run's time: a short piece of its text on the unchanged model, scaled.

A run of m methods on T tokens measures at most m T / 50 tokens: pieces of n and of n / 4 tokens,
each twice. n is the window where that is within the limit. A token has 2 P + 4 L W operations. P is
the number of weights in linear layers, L the tokens of a window, and W the sum of the attentions'
widths in elements. Each method has its own factor, ``Method.relative_time``.

| end of the range | passes that count | what a window takes |
|---|---|---|
| least | the fastest of each size | a fixed time, and a time by operations: both from two sizes |
| most | the slowest of n tokens | a time by operations alone |

Work that other processes begin later is in neither.
"""

import math
import time
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from golden.llm.eval.method import Method
from golden.llm.eval.perplexity import loss

_SHARE = 50
_LEAST = 32  # tokens of the longer piece
_TIMES = 2


def piece(seq: int, tokens: int, methods: int) -> int:
    """Tokens of the longer piece, a multiple of 4; 0: the run is too short to be worth it."""
    found = min(seq, 4 * tokens * methods // (5 * _TIMES * _SHARE)) // 4 * 4
    return found if found >= _LEAST else 0


def operations(model: nn.Module, seq: int) -> float:
    """Counts the operations of one token in a window of seq."""
    linears = (each for each in model.modules() if isinstance(each, nn.Linear))
    weights = sum(int(each.weight.numel()) for each in linears)
    config: Any = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = config.num_hidden_layers * config.num_attention_heads * head
    return float(2 * weights + 4 * seq * width)


def seconds_per_token(model: nn.Module, window: Tensor, count: int) -> tuple[float, float]:
    """(least, most) of the unchanged model on windows as long as this one.

    Measures the first ``count`` tokens of ``window``. The first pass, a cold one, is of count / 4.
    """
    few, many = count // 4, count
    took: dict[int, list[float]] = {few: [], many: []}
    for _ in range(_TIMES):
        for size in (few, many):
            start = time.monotonic()
            loss(model, [window[None, :size]])  # waits for a GPU
            took[size].append(time.monotonic() - start)
    small, large, wanted = (size * operations(model, size) for size in (few, many, len(window)))
    # Times out of order are noise: then nothing is taken as fixed.
    slope = (min(took[many]) - min(took[few])) / (large - small)
    slope = slope if slope > 0 else min(took[many]) / large
    fixed = max(min(took[many]) - slope * large, 0.0)
    least, most = fixed + slope * wanted, max(took[many]) / large * wanted
    return least / len(window), most / len(window)


def factor(methods: Iterable[Method]) -> float:
    """The run time of a combination in multiples of the unchanged model's."""
    return math.prod(each.relative_time for each in methods)


def duration(seconds: float) -> str:
    """Writes a time for people: 2 digits of seconds, minutes or hours."""
    if seconds < 99.5:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.0f} min" if seconds >= 570 else f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.0f} h" if seconds >= 34200 else f"{seconds / 3600:.1f} h"


def between(least: float, most: float) -> str:
    """Writes a range for people: both ends, or "about" one where they read the same."""
    ends = duration(least), duration(most)
    return f"about {ends[0]}" if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
