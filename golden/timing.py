"""The cycles that a block promises, as numbers.

Pages print the numbers, benches assert them, and the simulator uses them.

A block of hdl has its own Timing. ``golden/<room>/timing.py`` has the cycles that golden models,
the planner or the simulator need too, as functions of the numbers that shape a block. Pure Python:
no torch and no amaranth is loaded.
"""

import dataclasses
import re
from fractions import Fraction
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """``latency`` cycles from ``start`` to ``end``, one ``unit`` per ``interval`` cycles.

    latency : cycles from the transfer (or event) ``start`` to the transfer ``end`` that it causes;
        the block is idle, no source is idle and no sink is stalled
    latency_max : the longest latency, where the data or the command decide; else None
    interval : cycles from one unit to the next at full rate; below 1 for several per cycle
    start, end : names of streams or signals; with several of a kind, such as ``o_k``
    unit : what the interval counts
    delays : further delays, as (what, cycles)
    words : (stream, words per unit) of the streams that the interval slows; ``name_k`` is each
        stream of an array. Another stream may carry a word in each cycle

    ValueError names the field that is out of range.
    """

    latency: int
    interval: Fraction = Fraction(1)
    start: str = "i"
    end: str = "o"
    unit: str = "word"
    latency_max: int | None = None
    delays: tuple[tuple[str, int], ...] = ()
    words: tuple[tuple[str, Fraction | int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", Fraction(self.interval))
        if isinstance(self.latency, bool) or not isinstance(self.latency, int) or self.latency < 0:
            raise ValueError(f"Timing.latency must be 0 or more cycles, not {self.latency!r}")
        if self.interval <= 0:
            raise ValueError(f"Timing.interval must be above 0 cycles, not {self.interval}")
        if self.latency_max is not None and self.latency_max < self.latency:
            raise ValueError(f"Timing.latency_max must be {self.latency} or more cycles, not "
                             f"{self.latency_max}")  # fmt: skip

    def delay(self, what: str) -> int:
        """Cycles of the further delay ``what``; KeyError if there is none of that name."""
        return dict(self.delays)[what]

    def rate(self, stream: str) -> Fraction:
        """Words of ``stream`` per cycle, at most: over many words, or by the handshake."""
        for name, words in self.words:
            pattern = re.sub(r"_k$", r"_\\d+", name)
            if re.fullmatch(pattern, stream):
                return min(Fraction(words) / self.interval, Fraction(1))
        return Fraction(1)

    @property
    def is_combinational(self) -> bool:
        return self.latency == 0 and self.latency_max is None

    @property
    def latency_text(self) -> str:
        most = f" to {self.latency_max}" if self.latency_max is not None else ""
        cycles = "cycle" if self.latency == 1 and not most else "cycles"
        text = f"{self.latency}{most} {cycles} from {self.start} to {self.end}"
        text += " (combinational)" if self.is_combinational else ""
        return "; ".join([text, *(f"{cycles} {what}" for what, cycles in self.delays)])

    @property
    def throughput_text(self) -> str:
        """The rate, as units per whole cycles."""
        units, cycles = self.interval.denominator, self.interval.numerator
        each = "cycle" if cycles == 1 else f"{cycles} cycles"
        return f"{units} {self.unit}{'s' if units > 1 else ''} per {each}"

    def describe(self) -> dict[str, Any]:
        """The fields but ``words`` as plain JSON values; ``interval`` is a number."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "words"]
        fields = {name: getattr(self, name) for name in names}
        whole = self.interval.denominator == 1
        return fields | {
            "interval": int(self.interval) if whole else float(self.interval),
            "delays": dict(self.delays),
        }
