"""The order in which groups of a step's tokens take turns. Pure Python.

A layer of one group is a chain: while its QUANTIZE, FUNCTION or ATTEND runs, the lanes have nothing
to do. So the tokens of a step are groups, each a chain of its own. The lanes work for one while the
other units work for others. Each group reads the weights anew. Units take commands in the order of
the program, so the order is found here: whichever group is ready first is the next. Cycles are
estimates. They shape the order alone, never a result.
"""

import dataclasses
import math
from collections.abc import Sequence

from golden.kllm.config import MachineConfig
from golden.kllm.flow import NETWORK
from golden.kllm.isa import row_count
from golden.kllm.layer.layout import linear_sizes
from golden.kllm.layer.program import STAGES
from golden.kllm.model.layout import ModelShape

GROUPS = 3  # of them one attends while two have the lanes and the other units
_MATMUL = 90  # cycles of a MATMUL beyond its products
_COMMAND = 40  # of another command beyond its rows
_CONTEXT_SHARE = 2  # the order is for sequences of 1 / so many of the longest


def group_sizes(tokens: int) -> tuple[int, ...]:
    """Tokens of each group, in the order of the batch's places.

    Groups of unequal size wait for each other, and of 4 tokens one would have twice as many.
    """
    count = 2 if tokens == 4 else min(tokens, GROUPS)
    return tuple(tokens // count + (n < tokens % count) for n in range(count))


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Cycles of a group's stage: of the lanes, of the unit CACHE after them, and of other units."""

    lanes: float
    cache: float
    others: float


def _stages(shape: ModelShape, config: MachineConfig, tokens: int) -> list[_Stage]:
    layer, sizes = shape.layer, linear_sizes(shape.layer)

    def lanes(*names: str) -> float:
        products = sum(math.prod(sizes[name]) for name in names if name in sizes)
        products *= layer.active if layer.experts and set(names) & set(NETWORK) else 1
        return (
            tokens * products / (config.lane.lanes * config.lane.columns * config.elements)
            + _MATMUL
        )

    def rows(elements: int, passes: int = 1) -> float:
        return passes * tokens * row_count(elements) + _COMMAND

    hidden, wide = layer.hidden, layer.intermediate
    kv = layer.kv_heads * layer.head_size
    rotated = rows(layer.heads * layer.head_size + kv, 2)
    cached = shape.context // _CONTEXT_SHARE * row_count(kv) // (2 * config.engines)
    attend = tokens * cached + 4 * _COMMAND
    normed = rows(hidden, 2) + rows(hidden, 2)  # added to x, then quantized
    return [
        _Stage(lanes("q", "k", "v"), attend, rotated),
        _Stage(lanes("o"), 0, normed),
        _Stage(lanes("gate", "up"), 0, rows(wide, 2) + rows(wide, 2)),
        _Stage(lanes("down"), 0, normed),
    ]


def stage_order(shape: ModelShape, config: MachineConfig, sizes: Sequence[int]) -> list[int]:
    """The group of each stage of all layers, ``STAGES`` a layer and group.

    Places of one sequence follow each other in APPEND and ATTEND, whatever their groups: a group
    begins a layer after the groups before it.
    """
    stages = {size: _stages(shape, config, size) for size in set(sizes)}
    total = STAGES * shape.layers
    done, ready = [0] * len(sizes), [0.0] * len(sizes)
    lanes = cache = 0.0
    order: list[int] = []

    def may_go(group: int) -> bool:
        begins = done[group] % STAGES == 0
        return done[group] < total and not (begins and group and done[group - 1] <= done[group])

    while len(order) < total * len(sizes):
        group = min(filter(may_go, range(len(sizes))), key=lambda n: (ready[n], done[n], n))
        stage = stages[sizes[group]][done[group] % STAGES]
        lanes = max(lanes, ready[group]) + stage.lanes
        ready[group] = lanes + stage.others
        if stage.cache:
            cache = max(cache, ready[group]) + stage.cache
            ready[group] = cache + stage.others / 2
        done[group] += 1
        order.append(group)
    return order
