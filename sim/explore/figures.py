"""The figures of a point, of what ``sim.run --json`` says. Pure Python, without any engine."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from sim.engine import NOT_SCALED
from sim.model import Model

Record = dict[str, Any]  # see ``sim.explore.measure``

KINDS = ("measured", "counted", "paper", "fitted", "assumed", "scaled", "extrapolated")
AREAS = ("ours", "paper")  # whose area counts, the first that has a number
FIGURES_UNKNOWN = ("joules_per_token", "watts", "joules", "area", "on_chip_bytes")


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a point that runs; None: nothing states it, or it is not scaled.

    tokens_per_second : new tokens of all sequences, in decoding
    watts : joules of a second of decoding, the memory included
    area : square millimetres, by ``area_by``
    seconds, joules : of the whole request; ``joules_per_token`` is of decoding
    """

    tokens_per_second: float
    first_token_seconds: float
    seconds: float
    joules_per_token: float | None
    joules_low: float | None
    joules_high: float | None
    watts: float | None
    joules: float | None
    area: float | None
    area_by: str
    on_chip_bytes: float | None
    k_bits: float
    v_bits: float
    weight_bits: float


def figures(record: Record, model: Model) -> Figures:
    """The figures of what ``sim.run`` says."""

    def number(name: str) -> float | None:
        value = record.get(name)
        return float(value) if is_number(value) else None

    areas = {name: number(f"area_{name}_mm2") for name in AREAS}
    by = next((name for name, area in areas.items() if area is not None), "")
    energy = number("joules_per_token")
    rate = record["tokens_per_second"]
    return Figures(
        tokens_per_second=rate,
        first_token_seconds=record["first_token_seconds"],
        seconds=record["seconds"],
        joules_per_token=energy,
        joules_low=number("joules_per_token_low"),
        joules_high=number("joules_per_token_high"),
        watts=None if energy is None else energy * rate,
        joules=number("joules"),
        area=areas[by] if by else None,
        area_by=by,
        on_chip_bytes=number("on_chip_bytes"),
        k_bits=record["k_bits"],
        v_bits=record["v_bits"],
        weight_bits=8 * record["weight_bytes"] / model.weights,
    )


def unknown(record: Record, figure: str) -> str:
    """Says why a point lacks a figure: it is not scaled, or not stated."""
    if figure == "area":
        return NOT_SCALED if NOT_SCALED in _areas(record) else "not stated"
    is_energy = figure in ("joules_per_token", "watts", "joules")
    return NOT_SCALED if is_energy and record.get("joules") == NOT_SCALED else "not stated"


def _areas(record: Record) -> list[Any]:
    return [record.get(f"area_{name}_mm2") for name in AREAS]


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a record is a figure, not a text that says why there is none."""
    return isinstance(value, int | float)


def by_unit(operations: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The share of the time by what binds, the largest first."""
    made: dict[str, float] = {}
    for each in operations:
        made[each["binds"]] = made.get(each["binds"], 0.0) + each["share"]
    return dict(sorted(made.items(), key=lambda item: -item[1]))
