"""A point as ``sim.run`` computes it, with where its figures come from and how to build it.

It loads the engines. Whoever takes points from the disk imports nothing of this module.
"""

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

from golden.config import ConfigError
from sim.engine import Engine, engine_of, shown_error
from sim.engines.gpu import Gpu
from sim.engines.kllm import Kllm
from sim.engines.million import Million
from sim.engines.oaken import Oaken
from sim.engines.pair import Pair
from sim.engines.qet import Qet
from sim.engines.vqllm import VqLlm
from sim.explore.build import build
from sim.explore.figures import Record
from sim.explore.grid import Point, Setup
from sim.explore.provenance import constants, kinds, used_by
from sim.model import find_model
from sim.run import Run

_FAMILIES = {
    Kllm: "KLLM", Pair: "KLLM and Oaken", Oaken: "Oaken", Million: "MILLION", VqLlm: "VQ-LLM",
    Qet: "QET", Gpu: "GPU",
}  # fmt: skip
_OTHERS = "other baselines"

_model = functools.lru_cache(8)(find_model)


@functools.lru_cache(8)
def engine(setup: Setup) -> Engine:
    """Points of a setup share a chip, and what it has computed."""
    return engine_of(setup.hw, setup.changes())


def _measured(model: str, point: Point) -> Record:
    chip, found = engine(point.setup), _model(model)
    made: Record = Run(chip, found, point.batch, point.context, point.out).compute().describe()
    built = dataclasses.asdict(build(chip, found, point))
    return {**made, "kinds": kinds(chip, point.setup, made), **built}


def measure(model: str, point: Point) -> Record:
    """Returns what ``sim.run --json`` prints of the point, and more fields.

    kinds : of ``time``, ``energy``, ``area``, ``bits`` and ``bytes``, as ``sim.explore.provenance``
    commands, left_out : of ``sim.explore.build``

    A chip that cannot run it: ``refused`` alone says why, and ``failed`` marks a defect.
    """
    try:
        record: Record = json.loads(json.dumps(_measured(model, point)))
        return record
    except (ConfigError, ArithmeticError) as error:
        return {"refused": shown_error(error)}
    except Exception as error:  # one point never costs the others their figures
        return {"refused": f"{type(error).__name__}: {error}", "failed": True}


def measure_all(model: str, some: Sequence[Point]) -> list[Record]:
    """Measures points, in order."""
    return [measure(model, each) for each in some]


def facts(hw: str) -> dict[str, Any]:
    """Says what a chip is: ``about``, ``family``, and ``constants``.

    A constant has a name, a value with its unit, a kind, the figures that it is in, and a source.
    ConfigError: no such chip, or a bad field.
    """
    found = engine(Setup(hw=hw))
    uses = used_by(found)
    return {
        "about": found.hardware.about,
        "family": next(
            (name for each, name in _FAMILIES.items() if isinstance(found, each)), _OTHERS
        ),
        "constants": [
            [name, f"{each.value:g} {each.unit}".strip(), each.kind, uses[name], each.source]
            for name, each in constants(found).items()
        ],
    }
