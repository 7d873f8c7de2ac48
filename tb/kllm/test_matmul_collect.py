"""KllmMatmulCollect against golden.kllm.collect.collect.

Shown to fail with:

- the tail of a token kept
- rows after the last one written
- bits of a job with outputs shown next to those of one without
- a status that does not wait for the supply
- the stride left out of the fill
- void: rows written, NaN filled in, bits of lanes or of the supply shown
- the last token or group found without one bit of its number: bit 2, and bit 8
- rows told before their statuses, or before the first row is written
- rows told without the weights, or with those of the next command
- rows told of several tokens, of a void command, or of the command after a certain one
- the end of the last group told in place of the destination's
- NaN filled in for a number of tokens without bit 6, or of rows without bit 5
"""

import dataclasses

import numpy as np

from golden.kllm.collect import Ticket, collect
from golden.kllm.config import SlotShape
from golden.kllm.format import Status
from golden.kllm.isa import CommandStatus, row_count
from hdl.kllm.engine import row_write_layout
from hdl.kllm.lane.config import KllmPeLaneConfig
from hdl.kllm.matmul.collect import KllmMatmulCollect
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.payloads import row_layout
from tb.simulate.run import simulate

SLOT = SlotShape(elements=256)
LANE = {"k_max": 256, "outliers_max": SLOT.outliers_max}
CONFIGS = {
    "lanes_3": KllmMatmulConfig(lanes=3, lane=KllmPeLaneConfig(columns=32, **LANE), slot=SLOT),
    "lane_1": KllmMatmulConfig(lanes=1, lane=KllmPeLaneConfig(columns=16, **LANE), slot=SLOT),
}
MANY_GROUPS = 1400  # of a group of one row
SHOWN = Status.OVERFLOW | Status.SCALE_NONFINITE
SILENT = (Status.NONFINITE, Status.CODEBOOK_MISSING, Status.LAST_MISPLACED, Status.OUTLIER_COUNT)


def case(rng, config, ticket, silent=(), bus_error=False) -> dict:
    """The words of one ticket on every stream; ``silent``: its jobs without outputs."""
    jobs = 0 if ticket.done else ticket.groups * ticket.tokens
    fields = dataclasses.asdict(ticket)
    if config.front:  # one token of a slot, or of rows
        # All jobs of one token of a slot have outputs, or none has.
        mixed = silent and 0 not in silent
        fields["ordered"] = int(ticket.tokens == 1 and not mixed and rng.random() < 0.7)
    names = [f"row_{n}" for n in range(config.lanes)]
    words: dict = {"ticket": [config.ticket_layout.const(fields).as_bits()]}
    words |= {name: [] for name in names}
    words |= {f"lane_status_{n}": [] for n in range(config.lanes)}
    rows, statuses = [], []
    for job in range(jobs):
        status = Status(0)
        for n in range(config.lanes):
            mine = Status(int(rng.choice([0, 0, int(SHOWN & Status(1 << int(rng.integers(9))))])))
            if job in silent:
                mine |= SILENT[int(rng.integers(len(SILENT)))]
            words[f"lane_status_{n}"].append(int(mine))
            status |= mine
        shape = (0 if job in silent else config.lanes, config.lane_rows, 16)
        made = rng.integers(0, 1 << 16, shape).tolist()
        for name, lane in zip(names, made, strict=False):
            words[name] += [row_layout.const({"word": row}).as_bits() for row in lane]
        rows.append(made)
        statuses.append(status)
    writes, status = collect(ticket, rows, statuses, config.group_rows, bus_error)
    words["supply_done"] = [int(bus_error)] if jobs else []
    words["write"] = [
        row_write_layout.const({"row": row, "word": word}).as_bits() for row, word in writes
    ]
    words["status"] = [int(status)]
    is_certain = fields.get("ordered") and jobs and not (ticket.void or silent or bus_error)
    words["told"] = {
        "certain": bool(is_certain), "dst": ticket.dst, "rows": row_count(ticket.outputs),
        "error": bool(bus_error), "jobs": jobs,
    }  # fmt: skip
    return words


def random_ticket(rng, config, groups, tokens) -> Ticket:
    """One whose last group is complete, or ends in any row."""
    whole = config.group_outputs
    outputs = whole * (groups - 1) + int(rng.integers(1, whole + 1))
    if rng.random() < 0.3:
        outputs = whole * groups
    return Ticket(
        dst=int(rng.integers(0, 1000)), stride=int(rng.integers(0, 100)), tokens=tokens,
        outputs=outputs, groups=groups,
    )  # fmt: skip


def cases_of(config, seed) -> tuple[list[dict], list[dict]]:
    """(cases with outputs, all cases)."""
    rng = np.random.default_rng([seed, 97])
    plain, every = [], []
    for groups, tokens in ((1, 1), (2, 1), (1, 3), (3, 2), (2, 4)) * 2:
        plain.append(case(rng, config, random_ticket(rng, config, groups, tokens)))
    for groups, tokens, silent in (
        (1, 1, {0}), (2, 2, {1}), (1, 3, {0, 1, 2}), (2, 2, {0, 3}), (3, 1, {1, 2}),
    ):  # fmt: skip
        every.append(case(rng, config, random_ticket(rng, config, groups, tokens), silent))
        every.append(case(rng, config, random_ticket(rng, config, 1, 2)))
    every.append(case(rng, config, random_ticket(rng, config, 2, 2), (), True))
    every.append(case(rng, config, random_ticket(rng, config, 2, 2), {2}, True))
    for groups, tokens, silent, bus_error in (
        (1, 1, (), False),
        (2, 3, (), True),
        (2, 2, {1}, True),
    ):
        ticket = random_ticket(rng, config, groups, tokens)
        fault = int(rng.choice([CommandStatus.SLOT_MISMATCH, CommandStatus.ABORTED]))
        void = dataclasses.replace(ticket, void=1, fault=fault)
        every.append(case(rng, config, void, silent, bus_error))
    for fault in (CommandStatus.MALFORMED, CommandStatus.RANGE, CommandStatus(0)):
        every.append(case(rng, config, Ticket(done=1, fault=int(fault), groups=0, tokens=0)))
    for groups, tokens in ((1, 255), (MANY_GROUPS // config.group_rows, 1)):
        for bus_error in (False, True):
            ticket = random_ticket(rng, config, groups, tokens)
            every.append(case(rng, config, ticket, (), bus_error))
    order = rng.permutation(len(every) + len(plain))
    return plain, [(plain + every)[n] for n in order]


def check(config, seed) -> None:
    plain, every = cases_of(config, seed)
    simulate(
        KllmMatmulCollect(config),
        "tb.kllm.tb_matmul_collect",
        params={"plain": plain, "every": every, "group_rows": config.group_rows},
        seed=seed,
    )


def test_lanes_3(seed):
    check(CONFIGS["lanes_3"], seed)


def test_front(seed):
    """Rows of certain commands are told, and of no others."""
    check(dataclasses.replace(CONFIGS["lanes_3"], front=True), seed)


def test_lane_1(seed):
    check(CONFIGS["lane_1"], seed)
