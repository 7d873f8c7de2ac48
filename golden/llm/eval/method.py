"""The interface of a method: what it is, its name on the command line, and the bits it takes.

``NAME[:field=value,...]``: NAME is one of a method's spellings, whose digits are fields
(``rtn-w4a4``); the other fields follow. Methods are combined with ``+`` and installed from left to
right, each on the model as the ones before have left it: ``fp16+oaken:ratios=10/90``.

A method is a subclass of ``Method`` in a file of golden/llm/eval/methods, nothing else:
``discover`` finds it there. ``golden.llm.eval --methods FILE`` reads a file from another place.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from torch import Tensor, nn

from golden.config import Config
from golden.llm.eval.calibration import CalibrationData, State
from golden.llm.patch import K, Patch, V

__all__ = ["KINDS", "Bits", "Distance", "Method", "Site", "State"]

KINDS = ("weights", "activations", "kv")


class Bits:
    """Stored bits per element of weights, linear layers' inputs, and K and V.

    Methods count what they store; elements that no method counts are ``untouched`` bits wide. Of
    several methods that count the same place the last one counts.
    """

    def __init__(self, untouched: float = 32.0) -> None:
        self.untouched = untouched
        self._method = 0
        self._counted: dict[str, dict[str, dict[int, list[float]]]] = {kind: {} for kind in KINDS}

    def next_method(self) -> None:
        self._method += 1

    def add(self, kind: str, place: str, elements: int, bits: float) -> None:
        """``elements`` of ``place`` (a layer's name) at ``bits`` each; adds to earlier calls."""
        methods = self._counted[kind].setdefault(place, {})
        counted = methods.setdefault(self._method, [0.0, 0.0])
        counted[0] += elements
        counted[1] += elements * bits

    def adder(self, kind: str, place: str) -> Callable[[int, float], None]:
        """``add`` for the method being installed, to be called while the model runs."""
        counted = self._counted[kind].setdefault(place, {}).setdefault(self._method, [0.0, 0.0])

        def add(elements: int, bits: float) -> None:
            counted[0] += elements
            counted[1] += elements * bits

        return add

    def mean(self, kind: str) -> float:
        """Bits per element over all counted places; ``untouched`` where there is none."""
        last = [methods[max(methods)] for methods in self._counted[kind].values()]
        elements = sum(each[0] for each in last)
        return sum(each[1] for each in last) / elements if elements else self.untouched

    def describe(self) -> dict[str, float]:
        return {kind: self.mean(kind) for kind in KINDS}


@dataclasses.dataclass
class Distance:
    """The distance of the fast path from the exact one, over all values seen."""

    values: int = 0
    equal: int = 0
    difference: float = 0.0
    energy: float = 0.0
    largest: float = 0.0

    def add(self, fast: Tensor, exact: Tensor) -> None:
        difference = fast.double() - exact.double()
        self.values += exact.numel()
        self.equal += int((difference == 0).sum())
        self.difference += float((difference**2).sum())
        self.energy += float((exact.double() ** 2).sum())
        self.largest = max(self.largest, float(difference.abs().max()))

    def describe(self) -> dict[str, float]:
        """relative: Frobenius; largest: of one value; equal: share of values."""
        relative = (self.difference / self.energy) ** 0.5 if self.energy else 0.0
        return {
            "relative": relative,
            "largest": self.largest,
            "equal": self.equal / self.values if self.values else 1.0,
        }


class Site(Patch):
    """The site of a method's installation: a patch that counts bits and knows where to be bit-true.

    exact: names of linear layers and attention modules ("model.layers.0.self_attn") that run the
    exact arithmetic. For linear layers this is done with ``Method.bit_true``; a method that changes
    K, V or the scores asks ``exact`` itself, puts the exact values in place and calls ``compare``.
    """

    def __init__(
        self, model: nn.Module, bits: Bits | None = None, exact: Iterable[str] = ()
    ) -> None:
        super().__init__(model)
        self.bits = bits or Bits()
        self.exact = frozenset(exact)
        self.distances: dict[str, Distance] = {}

    def kv_counters(self) -> list[list[Callable[[int, float], None]]]:
        """[layer][kv]: adders of K's and V's bits, for taps that know them only as they run."""
        return [
            [self.bits.adder("kv", f"{layer}.{kv}") for kv in (K, V)]
            for layer in range(len(self.attentions))
        ]

    def compare(self, name: str, fast: Tensor, exact: Tensor) -> None:
        """Counts how far the fast values of a layer are from the exact ones."""
        self.distances.setdefault(name, Distance()).add(fast, exact)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(Config):
    """Base of all methods: a frozen dataclass whose fields are the method's parameters.

    pattern: regular expression of all spellings, its named groups are integer fields. spellings:
    examples for lists. calibrated: ``calibrate`` is needed. caches: it is a method for K and V.
    folds: it multiplies something into the weights, channel by channel; reorders: it puts the
    channels of weights and inputs in another order. relative_time: run time on a CPU in multiples
    of the unchanged model's, for estimates. Fields of types bool, int, float, str declare their
    ranges as those of any Config: ``bits: int = bounded(4, 2, 8)``.
    """

    pattern: ClassVar[str] = ""
    spellings: ClassVar[tuple[str, ...]] = ()
    calibrated: ClassVar[bool] = False
    caches: ClassVar[bool] = False
    folds: ClassVar[bool] = False
    reorders: ClassVar[bool] = False
    relative_time: ClassVar[float] = 1.0

    @property
    def calibration_tokens(self) -> int:
        """Tokens that ``calibrate`` had better have; 0: a few hundred do."""
        return 0

    @property
    def replaces_weights(self) -> bool:
        """The installed weights were found offline, whatever other methods have made of them."""
        return False

    def beside(self, others: "Sequence[Method]") -> "Method":
        """This method as it is in a combination with others: what one of them does, it leaves."""
        return self

    def calibrate(self, data: CalibrationData) -> State:
        """Learns offline, from the unchanged model; returns named tensors, stored in a file.

        Plain tensors of any dtype that safetensors knows, on the CPU. The same data and seed give
        the same tensors.
        """
        return {}

    def calibration_fields(self) -> dict[str, object]:
        """The fields that ``calibrate`` depends on: a file serves every method that agrees."""
        return self.describe() if self.calibrated else {}

    def install(self, site: Site, state: State) -> None:
        """Puts the method on the model through ``site``; ``state`` is what ``calibrate`` gave."""
        raise NotImplementedError

    def bit_true(self, site: Site, state: State, name: str) -> Callable[[Tensor], Tensor] | None:
        """The exact arithmetic of the hardware for the linear layer ``name``, or None.

        A function of the layer's unquantized input (T, K) float32 to its output (T, N) float32.
        It is called before ``install``, with the same state.
        """
        return None
