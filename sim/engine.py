"""How a chip works: the interface of the files in ``sim/engines``, and their register."""

import abc
import dataclasses
import functools
import importlib
import json
import pkgutil
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import sim.engines
from golden.config import Config, ConfigError
from sim.constant import KINDS
from sim.cost import Cost
from sim.hardware import MEMORY_FIELDS, Hardware, changed, check_ranges, fields_of, hardware_of
from sim.model import Model
from sim.work import Pass

__all__ = ["Engine", "check_fits", "engine_of", "engines", "shown_error", "template"]


class Engine(abc.ABC):
    """A chip with its memory. ``cost`` may be called with any pass of any model.

    name : as files of hardware spell it
    constants : each constant that the file must state, with its unit and its meaning
    Settings : the file's ``settings``, a dataclass that checks itself
    divisors, shares : constants that must be above 0, and those that must be 1 at most
    samples : contexts that a run computes of its steps, 2 or more; what lies between is a line

    An engine keeps nothing that depends on earlier calls, so one object serves all passes.
    """

    name: ClassVar[str]
    constants: ClassVar[Mapping[str, tuple[str, str]]]
    Settings: ClassVar[type[Config]]
    divisors: ClassVar[Collection[str]] = ()
    shares: ClassVar[Collection[str]] = ()
    samples: ClassVar[int] = 17

    def __init__(self, hardware: Hardware):
        check_ranges(hardware.name, hardware.constants, self.divisors, self.shares)
        self.hardware = hardware
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
        return self.hardware.constants[name].base

    @abc.abstractmethod
    def weight_bytes(self, model: Model) -> float:
        """Of all weights, as they are stored, scales and codebooks included."""

    @abc.abstractmethod
    def kv_bytes(self, model: Model, tokens: int) -> float:
        """Of K and V of all layers of a sequence of ``tokens`` tokens, as they are stored."""

    def kv_parts(self, model: Model, tokens: int) -> tuple[float, float]:
        """Those of K, and those of V; a chip that stores both alike has two halves."""
        half = self.kv_bytes(model, tokens) / 2
        return half, half

    def kv_bits(self, model: Model, tokens: int) -> tuple[float, float]:
        """Stored bits of an element of K, and of V; scales, pages and padding count."""
        elements = model.kept(tokens) * model.kv_elements / 2
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

    def check(self, model: Model, batch: int, context: int) -> None:  # noqa: B027, few chips refuse
        """ConfigError: the chip has no way to run the model at all, whatever its memory."""

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


def shown_error(error: Exception) -> str:
    """One line for a refusal, and for numbers of a file that no arithmetic can take."""
    if isinstance(error, ConfigError):
        return str(error)
    return f"a value of the hardware or of the model is out of range: {error}"


def check_fits(engine: Engine, model: Model, batch: int, context: int) -> None:
    """ConfigError: the memory lacks room; the line says how much, and what batch would fit."""
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
