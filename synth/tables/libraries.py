"""The same blocks in several cell libraries, given as ``--set NAME=FILE[,FILE...]``."""

from collections.abc import Callable
from typing import Any

from golden.config import Config
from golden.markers import table
from hdl.block import Block
from hdl.fp16.fma import FpFma, FpFmaConfig
from hdl.registry import find
from synth.area import load_libraries
from synth.tables.common import Map, Tables, library_sets, mapper


def _of(name: str) -> tuple[type, Config]:
    block = find(name)
    return block.component, block.configs["table1"]


def library_tables(sets: dict[str, Map]) -> dict[str, str]:
    """Section ``libraries``: the same blocks in several libraries, kGE and um2."""
    # A block is elaborated once: each library gets one of its own.
    blocks: dict[str, tuple[Callable[[Any], Block], Config, str]] = {
        "index_histogram_parallel, table1": (
            *_of("index_histogram_parallel"),
            "index_histogram_parallel",
        ),
        "index_reducer, table1": (*_of("index_reducer"), "index_reducer"),
        "fp16_fma, 2 stages": (FpFma, FpFmaConfig(), "fp16_fma"),
    }
    rows = []
    for label, (component, config, name) in blocks.items():
        for library, map_block in sets.items():
            report = map_block(component(config), name)
            rows.append(
                (
                    label,
                    library,
                    f"{report.cells:,}",
                    f"{report.flip_flops:,}",
                    f"{report.um2:,.1f}",
                    f"{report.kge:,.2f}",
                    f"{report.um2_28nm:,.0f}",
                )
            )
    head = ("block", "library", "cells", "flip-flops", "um2", "kGE", "um2, 28 nm eq.")
    return {"libraries": table(head, rows)}


def _map_libraries(options) -> tuple[dict[str, str], float]:
    sets = {"own table": mapper(load_libraries())}
    sets |= {name: mapper(each) for name, each in library_sets(options.sets).items()}
    return library_tables(sets), 0.0


TABLES = {"libraries": Tables(("libraries",), _map_libraries)}
