"""Pages of the KV cache: how many a chip has, and how many a sequence takes. Pure Python."""

import dataclasses
import math
import re

from golden.config import Config, ConfigError, Range, declared, flag
from sim.engine import Engine, check_fits
from sim.model import Model

_SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_MOST = 1 << 30  # tokens
_SLACK = 1e-9  # of a page: a quotient of two floats may lie above a whole number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page(Config):
    """``size`` tokens of all layers, or ``size`` bytes of each stream if ``is_bytes``.

    A sequence has a stream for K and one for V of each layer and KV head, or one of each layer
    with latent attention. Its streams grow together, so they take their next pages at the same
    token. Where some layers have a window, the pages of all streams count together.
    """

    size: int = dataclasses.field(metadata=declared(Range(1, 1 << 30)))
    is_bytes: bool = flag(False)


def page_of(text: str) -> Page:
    """``16``: tokens; ``4096B``, ``4KiB``, ``1MiB``: bytes of a stream. ConfigError: neither."""
    match = re.fullmatch(r"(\d{1,12})\s*(B|KiB|MiB|)", text.strip())
    if not match:
        raise ConfigError(f"--page must be tokens (16) or bytes (4096B, 4KiB, 1MiB), not {text!r}")
    number, unit = match.groups()
    return Page(size=int(number) * _SIZES[unit], is_bytes=bool(unit))


class Pages:
    """Memory that the weights leave, in pages. ConfigError: the weights leave none.

    size : bytes of a page, or of one page of every stream
    total : pages of the chip
    """

    def __init__(self, engine: Engine, model: Model, page: Page):
        check_fits(engine, model, 1, 1)
        self._engine, self._model = engine, model
        if page.is_bytes:
            self.size = float(page.size * model.streams)
        else:
            self.size = float(engine.kv_bytes(model, page.size))
        self.total = int((engine.memory.capacity - engine.weight_bytes(model)) // self.size)
        if self.total < 1:
            free = engine.memory.capacity - engine.weight_bytes(model)
            raise ConfigError(
                f"--page: no page of {self.size:.0f} B fits in the {free:.0f} B that the weights "
                f"of {model.name} leave on {engine.hardware.name}"
            )
        self._taken: list[int] = []

    @property
    def tokens(self) -> int:
        """The most tokens of a sequence that has one page."""
        low, high = 0, 1
        while high < _MOST and self.of(high) <= 1:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.of(middle) <= 1 else (low, middle)
        return low

    @property
    def capacity(self) -> float:
        """Bytes of all pages."""
        return self.total * self.size

    def of(self, tokens: int) -> int:
        """Pages of a sequence with ``tokens`` tokens in the cache."""
        return math.ceil(self._engine.kv_bytes(self._model, tokens) / self.size - _SLACK)

    def table(self, longest: int) -> list[int]:
        """``of`` for 0..longest tokens."""
        self._taken += [self.of(each) for each in range(len(self._taken), longest + 1)]
        return self._taken
