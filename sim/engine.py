"""The interface of the files in ``sim/engines``, which say how a chip works, and their register."""

import abc
import dataclasses
import functools
import importlib
import json
import pkgutil
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import sim.engines
from golden.config import Config, ConfigError
from sim.constant import KINDS, UNITS, Interval
from sim.cost import Cost, Totals, totals_of
from sim.hardware import MEMORY_FIELDS, Hardware, changed, check_ranges, fields_of, hardware_of
from sim.model import Model
from sim.work import Pass, Shape

NOT_SCALED = "not scaled"  # in the place of a figure of ``Engine.not_scaled``


class Engine(abc.ABC):
    """A chip with its memory. ``cost`` may be called with any pass of any model.

    name : as files of hardware spell it
    constants : each constant that the file must state, with its unit and its meaning
    Settings : the file's ``settings``, a dataclass that checks itself
    divisors, shares : constants that must be above 0, and those that must be 1 at most
    chip_fields : settings and constants that say what the chip is, as ``shaping`` gives them
    free_fields : settings that change no part of the chip, as what it stores
    energies : constants of the whole chip that each pass's energy is made of
    areas : by name of ``area``, constants that it is made of
    follows : by constant of these, of ``chip_fields`` those that its use follows
    samples : contexts that a run computes of its steps, 2 or more; what lies between is a line
    chips : that share the model

    An engine keeps nothing that depends on earlier calls, so one object serves all passes.
    """

    name: ClassVar[str]
    constants: ClassVar[Mapping[str, tuple[str, str]]]
    Settings: ClassVar[type[Config]]
    divisors: ClassVar[Collection[str]] = ()
    shares: ClassVar[Collection[str]] = ()
    chip_fields: ClassVar[Collection[str]] = ()
    free_fields: ClassVar[Collection[str]] = ()
    energies: ClassVar[Collection[str]] = ()
    areas: ClassVar[Mapping[str, Collection[str]]] = {}
    follows: ClassVar[Mapping[str, Collection[str]]] = {}
    samples: ClassVar[int] = 17
    chips: int = 1

    def __init__(self, hardware: Hardware):
        check_ranges(hardware.name, hardware.constants, self.divisors, self.shares)
        self.hardware = hardware
        self._bases = {name: each.base for name, each in hardware.constants.items()}
        self.memory = hardware.memory
        self.settings: Any = self._settings(hardware)

    def _settings(self, hardware: Hardware) -> Config:
        fields = {field.name for field in dataclasses.fields(self.Settings)}
        if unknown := sorted(set(hardware.settings) - fields):
            raise ConfigError(f"{hardware.name}: settings has no field {', '.join(unknown)}")
        try:
            return self.Settings(**hardware.settings)
        except TypeError as error:
            text = str(error).partition("__init__() ")[2]
            raise ConfigError(f"{hardware.name}: settings: {text}") from None
        except ConfigError as error:
            raise ConfigError(f"{hardware.name}: settings: {error}") from None

    def base(self, name: str) -> float:
        """A constant of the file, in its base unit."""
        return self._bases[name]

    @abc.abstractmethod
    def weight_bytes(self, model: Model) -> float:
        """Bytes of all weights, as they are stored, scales and codebooks included."""

    @abc.abstractmethod
    def kv_bytes(self, model: Model, tokens: int) -> float:
        """Bytes of K and V of all layers of a sequence of ``tokens`` tokens, as they are stored."""

    def kv_parts(self, model: Model, tokens: int) -> tuple[float, float]:
        """Those of K, and those of V; a chip that stores both alike has two halves."""
        half = self.kv_bytes(model, tokens) / 2
        return half, half

    def kv_bits(self, model: Model, tokens: int) -> tuple[float, float]:
        """Stored bits of an element of K, and of V; scales, pages and padding count."""
        elements = model.cached_elements(tokens) / 2
        k, v = self.kv_parts(model, tokens)
        return 8 * k / elements, 8 * v / elements

    def sram_bytes(self, model: Model) -> Mapping[str, float]:
        """Bytes of the chip's own memories by what they hold; empty: nothing states them.

        Queues, page tables and buffers of single vectors are left out.
        """
        return {}

    @abc.abstractmethod
    def cost(self, model: Model, step: Pass) -> Cost:
        """Time, bytes and energy of one pass. ConfigError: the chip cannot do it."""

    def totals(self, model: Model, parts: Sequence[Shape], words: int) -> Totals:
        """The sums of ``cost``, to the last bit, of a pass in which ``words`` sequences make one.

        Serving takes millions of passes. An engine may answer without a list of operations.
        """
        return totals_of(self.cost(model, Pass.of(parts, words)))

    def check(self, model: Model, batch: int, context: int) -> None:  # noqa: B027, few chips refuse
        """ConfigError: the chip has no way to run the model at all, whatever its memory."""

    def shaping(
        self, settings: Mapping[str, Any], constants: Mapping[str, float]
    ) -> Mapping[str, Any]:
        """Fields that every figure of the whole chip would have to follow, and their values."""
        both = {**settings, **constants}
        return {name: both[name] for name in self.chip_fields}

    def _unfollowed(self, name: str) -> str:
        """Fields in which the chip is not the one that a constant is stated for; empty: none."""
        stated, filed = self.hardware.stated.get(name), self.hardware.filed
        if not stated:
            return ""
        # What shapes no chip of the other file's engine is this chip's own, before any change.
        kind = engines().get(stated["engine"], type(self))
        theirs = {field.name: field.default for field in dataclasses.fields(kind.Settings)}
        theirs |= stated["settings"]
        own = {field.name: field.default for field in dataclasses.fields(self.Settings)}
        shaped = {key: value for key, value in theirs.items() if key not in kind.free_fields}
        settings = {**own, **filed["settings"], **shaped}
        constants = {
            key: each["value"] * UNITS[each["unit"]]
            for key, each in {**filed["constants"], **stated["constants"]}.items()
        }
        was = self.shaping(settings, constants)
        values = {key: each.base for key, each in self.hardware.constants.items()}
        now = self.shaping({key: getattr(self.settings, key) for key in own}, values)
        followed = self.follows.get(name, ())
        differ = [key for key in now if key not in followed and now[key] != was.get(key)]
        return "; ".join(
            f"{key} is {_plain(now[key])}, stated for {_plain(was.get(key))}" for key in differ
        )

    @property
    def not_scaled(self) -> Mapping[str, str]:
        """Figures that do not follow the chip's fields, and which fields.

        A figure is ``energy``, or a name of ``area``. It holds for the chip whose file states its
        constants. No formula says what it is for another number of lanes or another clock.
        """
        made = {}
        areas = {figure: self.areas[figure] for figure in self.area if figure in self.areas}
        for figure, names in {"energy": self.energies, **areas}.items():
            reasons = dict.fromkeys(filter(None, map(self._unfollowed, names)))
            if reasons:
                made[figure] = "; ".join(reasons)
        return made

    @property
    def shown_area(self) -> Mapping[str, float | str]:
        """Square millimetres by whose figure they are, or NOT_SCALED."""
        left = self.not_scaled
        return {n: NOT_SCALED if n in left else area * 1e6 for n, area in self.area.items()}

    @property
    def area_range(self) -> Mapping[str, Interval]:
        """``area``, each with the least and the most that it may be, where a formula says so."""
        return {}

    @property
    def area(self) -> Mapping[str, float]:
        """Square metres of the chip, by whose figure it is: ``paper``, ``ours``."""
        return {}


@functools.cache
def engines() -> dict[str, type[Engine]]:
    """Engines by name: each subclass that a file of ``sim/engines`` defines."""
    found: dict[str, type[Engine]] = {}
    for each in pkgutil.iter_modules(sim.engines.__path__):
        module = importlib.import_module(f"sim.engines.{each.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Engine) and "name" in vars(value):
                found[value.name] = value
    return found


def engine_of(text: str, changes: Mapping[str, Any] | None = None) -> Engine:
    """The engine of a known chip or a file. changes: of its JSON, as ``sim.hardware.changed``.

    ConfigError: no such chip, or a bad field.
    """
    name, fields = fields_of(text)
    fields = changed(name, fields, changes or {})
    kinds = engines()
    if not isinstance(fields["about"], str):
        raise ConfigError(f"{name}: about must be a text, not {fields['about']!r}")
    if not isinstance(fields["engine"], str) or fields["engine"] not in kinds:
        raise ConfigError(
            f"{name}: engine must be one of {', '.join(kinds)}, not {fields['engine']!r}"
        )
    kind = kinds[fields["engine"]]
    units = {constant: unit for constant, (unit, _) in kind.constants.items()}
    return kind(hardware_of(name, fields, units))


def template(name: str) -> dict[str, Any]:
    """A file of hardware with every field of an engine: defaults of settings, units of constants.

    The source of a constant says what it is; ``kind`` lists the choices. ConfigError: no such
    engine.
    """
    if name not in engines():
        raise ConfigError(f"--template must be one of {', '.join(engines())}, not {name!r}")
    kind = engines()[name]

    def constants(fields: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
        return {
            each: {"value": None, "unit": unit, "kind": " or ".join(KINDS), "source": meaning}
            for each, (unit, meaning) in fields.items()
        }

    settings = json.loads(json.dumps(kind.Settings().describe()))
    memory = {"kind": "a file of sim/memories", "channels": 1, **constants(MEMORY_FIELDS)}
    return {
        "engine": name,
        "about": "one line; settings and constants that equal the base's may be left out",
        "base": "another chip, or leave this field out",
        "settings": settings,
        "constants": constants(kind.constants),
        "memory": memory,
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_error(error: Exception) -> str:
    """One line for a refusal, and for numbers of a file that no arithmetic can take."""
    if isinstance(error, ConfigError):
        return str(error)
    return f"a value of the hardware or of the model is out of range: {error}"


def check_words(name: str, model: Model, bits: int) -> None:
    """ConfigError: the chip stores K and V in ``bits`` by head, and the model has no such."""
    if model.kv_rank and bits < 16:
        raise ConfigError(
            f"{name}: kv_bits must be 16 with latent attention (kv_lora_rank {model.kv_rank}): "
            f"nothing says what a latent vector is in {bits} bits"
        )


def check_fits(
    engine: Engine, model: Model, batch: int, context: int, positions: int | None = None
) -> None:
    """ConfigError: the memory lacks room; the line says how much, and what batch would fit.

    Or the model has learned fewer than ``positions``, which are ``context`` if None.
    """
    model.check_length(context if positions is None else positions)
    engine.check(model, batch, context)
    weights, each = engine.weight_bytes(model), engine.kv_bytes(model, context)
    missing = weights + batch * each - engine.memory.capacity
    if missing <= 0:
        return
    left = engine.memory.capacity - weights
    most = int(left // each) if left > 0 and each else 0
    can = f"batch {most} would fit" if most else "no batch would fit"
    raise ConfigError(
        f"{model.name} at batch {batch} and {context} tokens lacks {missing / 1e9:.2f} GB of "
        f"{engine.memory.capacity / 1e9:.0f} GB on {engine.hardware.name}; {can}"
    )
