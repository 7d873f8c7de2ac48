"""KllmFunctionControl against a list of what each job starts, in order, and its status.

Shown to fail with:

- codebook 1 not needed for two slots
- a token of SOFTMAX that begins at the row of the one before
- a SOFTMAX that ends after the low six bits of its tokens
- a status before the results are idle
- a bad row that leaves no NONFINITE
- a slot of another length taken, or of one that differs in one bit
- a derived scalar of the other sign
- a walk of operand b for single elements
- outliers of a second slot that is not in use
- a scale of which one bit is inverted in each cycle
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.kllm.config import SlotShape
from golden.kllm.format import Operation
from golden.kllm.functional import negated_mean
from golden.kllm.isa import CommandStatus
from hdl.kllm.engine import descriptor_layout
from hdl.kllm.function.control import KllmFunctionControl, KllmFunctionControlConfig
from hdl.kllm.function.job import Kind, job_layout, result_walk_layout, row_walk_layout
from hdl.kllm.function.unit import KllmFunctionalUnitConfig
from tb.simulate.run import simulate

CONFIGS = {
    "table1": KllmFunctionalUnitConfig().control,
    "small": KllmFunctionalUnitConfig(
        slot=SlotShape(elements=512, outliers_max=9, bits_a=2, integer_bits=0), width=16,
        softmax_elements=512,
    ).control,
}  # fmt: skip
JOBS, LENGTH = 120, 500
OTHER_LENGTH = LENGTH ^ (1 << descriptor_layout["length"].width) - 1  # of slot 7: no bit in common
ROWS_OPERATIONS = (Operation.SUM, Operation.PRODUCT, Operation.ROTATE, Operation.ELEMENT)


@dataclasses.dataclass
class Descriptors:
    """Sixteen slots: words, and the fields of each. Some are empty, integer, or of LENGTH."""

    words: list[int]
    fields: list[dict[str, int]]

    @classmethod
    def random(cls, rng, outliers_max: int) -> "Descriptors":
        fields = []
        for n in range(16):
            mean, rms = rng.normal(0, 2), rng.uniform(0.01, 3)
            if n % 3 == 0:  # few bits: a product that one bit more or less rounds another way
                mean, rms = ((1 << rng.integers(12)) + rng.integers(2, size=2)) / 1024
            fields.append({
                "valid": int(n != 3), "integer": int(n == 5),
                "length": OTHER_LENGTH if n == 7 else LENGTH,
                "outliers": int(rng.integers(0, outliers_max + 1)),
                "scale": int(rng.integers(0, 1 << 16)),
                "rms_reciprocal": int(np.float32(rms).view(np.uint32)),
                "mean": int(np.float32(mean).view(np.uint32)),
            })  # fmt: skip
        return cls([descriptor_layout.const(each).as_bits() for each in fields], fields)


def random_job(rng) -> dict[str, int]:
    """Fields that decode could give, for a token of LENGTH elements or of one more row."""
    kind = Kind(int(rng.choice(4, p=[0.4, 0.25, 0.3, 0.05])))
    operation = {
        Kind.ROWS: ROWS_OPERATIONS[int(rng.integers(4))],
        Kind.SOFTMAX: Operation.SCORE,
        Kind.SLOTS: Operation.COPY,
        Kind.CODEBOOK: Operation.COPY,
    }[kind]
    job = {name: int(rng.integers(0, 1 << job_layout[name].width)) for name in job_layout.members}
    job |= {"kind": int(kind), "operation": int(operation), "status": 0, "two_slots": 0,
            "derives": 0, "slot_a": int(rng.integers(0, 16)), "slot_b": int(rng.integers(0, 16)),
            "length": LENGTH, "rows": 32, "steps": 32}  # fmt: skip
    job["tokens"] = int(rng.integers(1, 5)) if kind != Kind.SLOTS else 1
    if operation == Operation.ROTATE:
        job |= {"length": 512, "steps": 16}
    if operation == Operation.SUM:
        job["derives"] = int(rng.random() < 0.5)
    if kind == Kind.SLOTS and rng.random() < 0.5:
        job |= {"operation": int(Operation.PRODUCT), "two_slots": 1}
    if rng.random() < 0.05:
        job["status"] = int(rng.choice([CommandStatus.RANGE, CommandStatus.MALFORMED]))
    return job


RIGHT_SLOTS = tuple(n for n in range(16) if n not in (3, 5, 7))  # valid, of LENGTH


def slots_job(rng, length: int, slots: tuple[int, ...] = RIGHT_SLOTS) -> dict[str, int]:
    """A job of ``length`` and of one or two of these slots."""
    while (job := random_job(rng))["kind"] != Kind.SLOTS or job["status"]:
        pass
    slot_a, slot_b = (int(each) for each in rng.choice(slots, 2))
    return job | {"length": length, "slot_a": slot_a, "slot_b": slot_b}


def longest_job(rng) -> dict[str, int]:
    """SOFTMAX of as many tokens as a job can have."""
    while (job := random_job(rng))["kind"] != Kind.SOFTMAX or job["status"]:
        pass
    return job | {"tokens": (1 << job_layout["tokens"].width) - 1}


class Script:
    """Words of every stream, and the events that control must cause, job by job."""

    def __init__(self, config: KllmFunctionControlConfig, rng):
        self.config, self.rng = config, rng
        self.slots = Descriptors.random(rng, config.outliers.count_max)
        self.words = {"job": [], "maximum": [], "total": []}
        self.events: list[list] = []  # of each job: [stream, fields that are specified]

    def walk(self, job, **fields) -> dict:
        """Fields of a walk, with what control adds to them."""
        fields |= {"steps": job["steps"], "pair": int(job["operation"] == Operation.ROTATE)}
        fields.setdefault("tokens", job["tokens"])
        if fields["pair"]:
            fields.setdefault("second", fields["first"] + job["steps"] & 0xFFFF)
        return fields

    def add(self, job: dict, loaded: int) -> None:
        self.words["job"].append(job_layout.const(job).as_bits())
        events: list = []
        status = job["status"] or self.started(job, loaded, events)
        self.events.append([*events, ["status", {"status": int(status)}]])

    def started(self, job: dict, loaded: int, events: list) -> int:
        """Append what the job starts; its status."""
        kind, two = job["kind"], job["two_slots"]
        is_slots = kind == Kind.SLOTS
        a, d = job["a_first"], job["d_first"]
        needed = (3 if two else 1) if is_slots else 0
        if needed & ~loaded:
            return CommandStatus.CODEBOOK_MISSING
        numbers = [job["slot_a"], job["slot_b"]][: 1 + two]
        fields = [self.slots.fields[number] for number in numbers]
        if is_slots or job["derives"]:
            events += [["slot_slot", {"slot": number}] for number in numbers]
            if not all(each["valid"] for each in fields):
                return CommandStatus.SLOT_MISMATCH
        if is_slots:
            if any(each["integer"] or each["length"] != job["length"] for each in fields):
                return CommandStatus.SLOT_MISMATCH
            events.append(["fill", {"scale": [each["scale"] for each in fields]}])
            for name, counts in (("entries", [job["rows"]] * (1 + two)),
                                 ("outliers", [each["outliers"] for each in fields])):  # fmt: skip
                events.append([name, {"slot": numbers, "count": counts if two else [*counts, 0]}])
        if kind == Kind.CODEBOOK:
            events += [["walk_a", {"first": a}], ["load", {"table": job["table"]}]]
            return 0
        if kind == Kind.SOFTMAX:
            return self.softmax(job, events)
        scalar = job["scalar"]
        if job["derives"]:
            words = torch.tensor(fields[0]["mean"]), torch.tensor(fields[0]["rms_reciprocal"])
            scalar = int(negated_mean(*words))
        lanes = {"operation": job["operation"], "scalar": scalar}
        if not is_slots:
            walk = self.walk(job, first=a, stride=job["a_stride"])
            events.append(["walk_a", lanes | walk])
            if job["operation"] != Operation.ELEMENT:
                second = {"second": job["b_second"]} if walk["pair"] else {}
                walk = self.walk(job, first=job["b_first"], stride=job["b_stride"], **second)
                events.append(["walk_b", walk])
        walk = self.walk(job, first=d, stride=job["d_stride"])
        single = int(job["operation"] == Operation.ELEMENT)
        events.append(["walk_d", walk | {"tail": job["length"] % 16, "single": single}])
        return 0

    def softmax(self, job: dict, events: list) -> int:
        status, rng = 0, self.rng
        for token in range(job["tokens"]):
            a = job["a_first"] + token * job["a_stride"] & 0xFFFF
            d = job["d_first"] + token * job["d_stride"] & 0xFFFF
            beats = job["rows"] * (16 // self.config.softmax.width)
            walk = self.walk(job, first=a, tokens=1)
            events += [["walk_a", walk], ["row", {"length": job["length"], "beats": beats}]]
            bad, maximum = int(rng.random() < 0.3), int(rng.integers(0, 1 << 16))
            self.words["maximum"].append(maximum | bad << 16)
            if bad:
                status = CommandStatus.NONFINITE
                continue
            total = {"sum": int(rng.integers(1 << 30)), "reciprocal": int(rng.integers(1 << 32))}
            self.words["total"].append(self.config.softmax.total_layout.const(total).as_bits())
            # What the lanes do is seen in the cycle after.
            lanes = {"operation_after": int(Operation.DIFFERENCE), "scalar_after": maximum}
            events.append(["walk_a", walk | lanes])
            lanes = {"operation_after": int(Operation.SCALE), "scale_after": total["reciprocal"]}
            walk = self.walk(job, first=d, tokens=1) | {"tail": job["length"] % 16, "single": 0}
            events.append(["walk_d", walk | lanes])
        return status


def positions(layout) -> dict[str, tuple[int, int, int]]:
    """Name -> offset, width of an element, number of elements."""
    found = {}
    for name in layout.members:
        field = layout[name]
        if name == "rows":  # of a result walk
            found |= positions(field.shape)
            continue
        count = getattr(field.shape, "length", 1)
        found[name] = (field.offset, field.width // count, count)
    return found


@pytest.mark.telling("0-table1", "1-small", "3-small")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("loaded", [0, 1, 3])
def test_function_control(name, loaded, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 88, loaded])
    script = Script(config, rng)
    for _ in range(JOBS):
        script.add(random_job(rng), loaded)
    script.add(longest_job(rng), loaded)
    for bit in range(job_layout["length"].width):
        script.add(slots_job(rng, LENGTH ^ 1 << bit), loaded)
        script.add(slots_job(rng, OTHER_LENGTH ^ 1 << bit, (7,)), loaded)
    script.add(slots_job(rng, OTHER_LENGTH, (7,)), loaded)
    plain = Script(config, rng)
    while len(plain.events) < 20:
        job = random_job(rng)
        if job["kind"] == Kind.ROWS and not job["derives"] and not job["status"]:
            plain.add(job, loaded)
    layouts = {
        "walk_a": row_walk_layout, "walk_b": row_walk_layout, "walk_d": result_walk_layout,
        "row": config.softmax.row_layout, "entries": config.entries.walk_layout,
        "outliers": config.outliers.walk_layout,
    }  # fmt: skip
    fields = {each: positions(layout) for each, layout in layouts.items()}
    fields |= {"status": {"status": (0, len(CommandStatus), 1)}, "slot_slot": {"slot": (0, 8, 1)}}
    fields |= {"load": {"table": (0, 1, 1)}, "fill": {"scale": (0, 16, 2)}}
    simulate(
        KllmFunctionControl(config),
        "tb.kllm.tb_function_control",
        params={
            "loaded": loaded, "fields": fields, "descriptors": script.slots.words,
            "words": script.words, "events": script.events,
            "plain": {"words": plain.words, "events": plain.events},
        },
        seed=seed,
    )  # fmt: skip
