"""KllmMatmulIssue against golden.kllm.issue: faults, supply jobs, tickets and the work of walks.

Shown to fail with:

- one group more for outputs of whole groups
- bit 4 of the number of groups lost
- a MATMUL that waits for its release before it requests weights
- walks, a ticket or a refusal that does not wait for the release
- weights requested for nothing that no void work takes
- void work after a fault that requests no weights
- a codebook that stays loaded after a bad packet
- a packet outside the vector memory, before the first one, that is taken as loaded
- the kind of such a packet, or a bad word of the packet before
- a packet that begins before the outputs are collected, or in spite of an abort; its ticket early
- the mismatch, or the fault, of the command before; a slot of the other kind taken
- void work of DIRECT that reads rows
- a bad packet that the next packet's ticket, and no command after it, shows
- a MATMUL that waits for the codebook before it requests weights
- a turn that does not wait for the codebook's ticket
- the mismatch of the last slot only
- DIRECT that does not wait for the rows before it
- DIRECT that waits for them before it requests weights
- a command taken before its walks are done
- a walk of slots that ends after the low two bits of ``tokens``, the low five, six or seven
- the factors of a command that does not fold
- a bit of the last source row inverted
- in fixed point: C_B judged as a product, or the grid of the other mode
- in rows: a word after the centroids that is judged
- several tokens, or those of DIRECT, told as one of a slot
- with bases: a base that is added to every address, or to none; its words in the other order
- a based MATMUL that requests weights before the base has come
- a base that is judged as a packet, that goes to the lanes, or that unloads the codebook
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.collect import Ticket
from golden.kllm.config import MachineConfig
from golden.kllm.isa import (
    COMMAND_WORDS,
    Codebook,
    CommandStatus,
    MatmulMode,
    Opcode,
    encode,
)  # fmt: skip
from golden.kllm.issue import base_rows, codebook_fault, codebook_rows, issue, matmul_fault
from golden.kllm.timing import matmul_supply, matmul_ticket
from golden.kllm.vectors.jobs import packet_stream
from golden.kllm.walks import row_requests
from golden.words import alternating, join, unpack_ints
from hdl.kllm.engine import descriptor_layout
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.issue import KllmMatmulIssue
from hdl.kllm.matmul.payloads import (
    matmul_work_layout,
    row_work_layout,
    supply_job_layout,
    ticket_layout,
)  # fmt: skip
from hdl.kllm.room import BLOCKS
from tb.kllm.support.commands import command_payload, weights_requested
from tb.kllm.test_lane_codebook import last_within, word_grids, words_beyond, words_within
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small"]
LENGTH = 16  # of the slots that long walks read
REPLAY = 13  # beats that several tokens may share: fewer than those of the longest token
# products, slots: most of an accelerator, and most of the engine; half packets; words; rows ahead
CASES = {
    "rounded": ("rounded", 64),
    "fixed16": ("fixed16", 64),
    "256_slots": ("rounded", 256),
    "fixed12_half": ("fixed12", 64, True),
    "rows": ("rounded", 64, False, 16),
    "rows_fixed16": ("fixed16", 64, False, 16),
    "front": ("rounded", 64, False, 1, True),
    "based": ("rounded", 64, False, 1, False, True),
    "based_rows": ("rounded", 64, False, 16, False, True),
}


def engine(
    product: str, slots: int, half: bool = False, packet_words: int = 1, front: bool = False,
    based: bool = False,
) -> tuple[MachineConfig, KllmMatmulConfig]:  # fmt: skip
    """The small machine with these products, slots and packets, and its engine."""
    machine = dataclasses.replace(
        SMALL.machine, replay_beats=REPLAY, product=product, antisymmetric=half
    )
    small = dataclasses.replace(SMALL, machine=machine).matmul_config
    lane = dataclasses.replace(small.lane, packet_words=packet_words)
    small = dataclasses.replace(small, lane=lane, front=front, based=based)
    machine = dataclasses.replace(machine, batch=int(based), experts=int(based))
    slot = dataclasses.replace(small.slot, slots=slots)
    return dataclasses.replace(machine, slot=slot), dataclasses.replace(small, slot=slot)


ANSWER = 2  # cycles of the slots at full rate


@dataclasses.dataclass(frozen=True)
class Slot:
    length: int
    integer: bool
    rms_reciprocal: int


class Program:
    """Commands one after another, and what each of them causes."""

    def __init__(self, rng, slots, machine: MachineConfig, config: KllmMatmulConfig):
        lane, self.front = config.lane, config.front
        self.rng, self.slots = rng, slots
        self.machine, self.lane = machine, lane
        self.loaded: Codebook | None = None
        self.bad: Codebook | None = None  # the kind of the latest packet, if a word of it was bad
        self.steps: list[dict] = []
        self.base = 0

    def _step(self, opcode, operands, fault, **given):
        known = opcode in (Opcode.MATMUL, Opcode.LANE_CODEBOOK, Opcode.WEIGHT_BASE)
        words = encode(opcode, 0, {}, operands) if known else [0] * COMMAND_WORDS
        step = {
            "name": f"{len(self.steps)} {opcode!r} {operands}",
            "command": command_payload([int(opcode), *words[1:]]),
            "ticket": ticket(Ticket(done=1, fault=int(fault), groups=0, tokens=0, outputs=0)),
            "is_done": True,
            "supply": [], "supply_rms": [], "slot": [], "packet": [], "codebook": [],
            "work": [], "row_work": [], "waits": False, "cycles": None, "release": [0],
        }  # fmt: skip
        self.steps.append(step | given)

    def _abort(self, opcode, operands, **given):
        """A command that an abort ends before it may run."""
        self._step(opcode, operands, CommandStatus.ABORTED, **{"release": [1]} | given)
        return CommandStatus.ABORTED

    def codebook(self, kind, bad=None, src=0, aborted=False):
        """A packet with ends of -1..1; bad: the place of a word beyond."""
        if aborted:
            return self._abort(Opcode.LANE_CODEBOOK, {"src": src, "kind": int(kind)})
        rows = codebook_rows(self.machine, src, kind)
        grids = word_grids(self.lane, rows.words)
        words = words_within(self.rng, grids)
        for at in self.rng.integers(0, rows.words, 4).tolist():
            words[at] = last_within(self.rng, grids[at])
        if bad is not None:
            words[bad] = int(self.rng.choice(words_beyond(grids[bad])))
        fault = codebook_fault(self.machine, rows, ())
        given = {"waits": True}
        if not fault:
            fault = codebook_fault(self.machine, rows, words)
            self.loaded, self.bad = (None, Codebook(kind)) if fault else (Codebook(kind), None)
            packet = unpack_ints(packet_stream(self.lane, np.array(words)))
            given |= {"packet": packet, "codebook": packet, "row_work": [row_work(rows)]}
        self._step(Opcode.LANE_CODEBOOK, {"src": src, "kind": int(kind)}, fault, **given)
        return fault

    def weight_base(self, base, src=0, aborted=False):
        """The two words of a row, of which the others are any."""
        if aborted:
            return self._abort(Opcode.WEIGHT_BASE, {"src": src})
        fault = CommandStatus(0) if src < self.machine.vector_rows else CommandStatus.RANGE
        given = {"waits": True}
        if not fault:
            self.base = base
            halves = (base & 0xFFFF, 16), (base >> 16, 16)
            if self.lane.packet_words > 1:
                rest = int.from_bytes(self.rng.bytes(28), "little")
                packet = [join(*halves, (rest, 224), (1, 1))]
            else:
                packet = [join(half, (n, 1)) for n, half in enumerate(halves)]
            given |= {"packet": packet, "row_work": [row_work(base_rows(src))]}
        self._step(Opcode.WEIGHT_BASE, {"src": src}, fault, **given)
        return fault

    def matmul(self, kind, aborted=False, **wrong):
        rng = self.rng
        slot = {MatmulMode.KMEANS: 0, MatmulMode.INTEGER: 2}.get(kind, 0)
        tokens = int(rng.integers(1, 3))
        o = {
            "mode": int(kind), "tokens": tokens, "slot": slot,
            "length": self.slots[slot].length if kind != MatmulMode.DIRECT
            else int(rng.integers(1, self.machine.outliers_max + 1)),
            "outputs": int(rng.choice([1, 31, 32, 33, 64, 200])),
            "weights": int(rng.integers(0, 1 << 32)), "dst": int(rng.integers(0, 100)),
            "stride": int(rng.integers(0, 70)), "src": int(rng.integers(0, 100)),
            "src_stride": int(rng.integers(0, 70)),
            "fold_norm": int(rng.integers(0, 2)) if kind != MatmulMode.DIRECT else 0, "based": 0,
        } | wrong  # fmt: skip
        fault = matmul_fault(self.machine, o, self.loaded, self.slots)
        direct = o["mode"] == MatmulMode.DIRECT
        given = {"waits": direct}
        read = [] if direct else list(range(o["slot"], o["slot"] + o["tokens"]))
        requests, late = weights_requested(fault, kind, self.bad)
        if requests:
            if aborted:
                fault = CommandStatus.ABORTED
            unread = aborted or late
            made = issue(self.machine, o, fault, self.base)
            fold = bool(o["fold_norm"])
            ordered = int(self.front and o["tokens"] == 1 and not direct)
            given |= {
                "supply": [supply_job_layout.const(made.supply).as_bits()],
                "ticket": ticket(made.ticket) | ordered << ticket_layout.size, "is_done": False,
                "slot": read * (not unread) + read * fold,
                "supply_rms": [self.slots[n].rms_reciprocal for n in read] if fold else [],
                "work": [matmul_work_layout.const(dataclasses.asdict(made.work)).as_bits()],
                "row_work": [row_work(made.rows)] if made.rows else [],
                "cycles": matmul_supply(made.work.groups),
                "ticket_cycles": matmul_ticket(0 if direct or unread else o["tokens"], ANSWER),
            }  # fmt: skip
        if aborted:
            return self._abort(Opcode.MATMUL, o, **given)
        self._step(Opcode.MATMUL, o, fault, **given)
        return fault


def ticket(fields: Ticket) -> int:
    return ticket_layout.const(dataclasses.asdict(fields)).as_bits()


def row_work(rows) -> int:
    assert row_requests(rows)
    return row_work_layout.const(dataclasses.asdict(rows)).as_bits()


def program(rng, machine: MachineConfig, config: KllmMatmulConfig) -> Program:
    lane = config.lane
    most = machine.slots
    slots = [
        Slot(200, False, 0x3F800000), Slot(200, False, 0x40490FDB),
        Slot(77, True, 0x3F000000), Slot(77, True, 0x3E000000),
        *(Slot(LENGTH, False, int(rng.integers(1, 0x7F80)) << 16) for _ in range(4, most - 1)),
        Slot(LENGTH + 1, False, 0x3F800000),
    ]  # fmt: skip
    made = Program(rng, slots, machine, config)
    bins = lane.bins
    K, N, D = MatmulMode.KMEANS, MatmulMode.INTEGER, MatmulMode.DIRECT
    R, M, C = CommandStatus.RANGE, CommandStatus.SLOT_MISMATCH, CommandStatus.CODEBOOK_MISSING
    rows = machine.vector_rows
    assert made.matmul(K) == C
    assert made.codebook(Codebook.KMEANS, src=rows - 1) == R  # there is still none
    assert made.codebook(Codebook.KMEANS, aborted=True)
    assert made.matmul(K) == C
    assert not made.codebook(Codebook.KMEANS)
    assert not made.matmul(D, outputs=32)
    for mode in (K, D, K, K, D, D):
        assert not made.matmul(mode)
    whole = {"length": LENGTH, "outputs": 1, "dst": 0, "stride": 1}
    folds = [(4, 3), (5, 4), (9, 7), (20, 16), (30, 33), (4, most - 5)]
    tails = [2, 3, 5, 9, 17, 33]
    if most > 64:
        folds, tails = [(9, 129)], [65, 129, most - 4]
    for slot, tokens in folds:
        assert not made.matmul(K, slot=slot, tokens=tokens, fold_norm=1, **whole)
    for tokens in tails:  # the last slot alone is wrong
        assert made.matmul(K, slot=most - tokens, tokens=tokens, **whole) == M
    assert made.matmul(N) == C
    made._step(0x7F, {}, CommandStatus.MALFORMED)
    assert not made.matmul(K, fold_norm=1, tokens=2)
    for wrong in (
        {"mode": 3}, {"tokens": 0}, {"length": 0}, {"length": machine.slot_elements + 1},
        {"outputs": 0}, {"dst": rows, "outputs": 1}, {"dst": rows - 1, "outputs": 17},
        {"dst": rows - 1, "tokens": 2, "stride": 1, "outputs": 1},
        {"slot": most - 1, "tokens": 2}, {"slot": 255, "tokens": 255},
        *([{"slot": most, "tokens": 1}] if most < 256 else []),
    ):  # fmt: skip
        assert made.matmul(K, **wrong) == R, wrong
    assert not made.matmul(K, tokens=1, dst=rows - 1, outputs=16)
    for outputs in (*alternating(16 * rows), 16 * rows):  # as many as the memory has room for
        assert not made.matmul(K, tokens=1, dst=0, outputs=outputs)
    for wrong in (
        {"fold_norm": 1},
        {"length": machine.outliers_max + 1},
        {"src": rows, "tokens": 1},
        {"src": rows - 1, "tokens": 2, "src_stride": 1},
    ):
        assert made.matmul(D, **wrong) == R, wrong
    assert not made.matmul(D, src=rows - 1, tokens=1, length=16)
    # Two rows that end at or before the last one: a changed bit of the sum is a range fault.
    for bit in range((rows - 1).bit_length()):
        place = rows - 1 - (1 << bit)
        assert not made.matmul(D, src=place, tokens=1, length=32, outputs=1)
        assert not made.matmul(K, dst=place, tokens=1, outputs=32)
    assert made.matmul(K, tokens=2, length=16 * REPLAY + 1) == R
    assert made.matmul(K, length=199) == M
    assert made.matmul(K, slot=1, tokens=2) == M
    assert made.matmul(K, slot=2, tokens=1, length=77) == M
    assert made.codebook(Codebook.KMEANS, src=rows - 1) == R  # the codebook stays
    assert made.codebook(Codebook.INTEGER, src=rows) == R  # and its kind
    assert made.codebook(Codebook.INTEGER, aborted=True)  # it stays again
    assert not made.matmul(K)
    for fold in (0, 1):
        assert made.matmul(K, aborted=True, fold_norm=fold)
        assert made.matmul(K, aborted=True, slot=1, tokens=2, fold_norm=fold)  # no slot is judged
        assert made.matmul(K, slot=1, tokens=2, fold_norm=fold, outputs=200) == M
        assert not made.matmul(K)
    assert made.matmul(D, aborted=True)
    assert not made.matmul(D)
    for wrong in ({"tokens": 0}, {"outputs": 0}):
        assert made.matmul(K, aborted=True, **wrong)
    assert made.matmul(N, aborted=True)
    for bad in (bins - 1, bins, -1):
        assert made.codebook(Codebook.KMEANS, bad=bad) == R
        for fold in (0, 1):
            assert made.matmul(K, fold_norm=fold) == C
        assert made.matmul(D) == C
        assert made.matmul(K, aborted=True)
        assert made.matmul(K, slot=1, tokens=2) == C
        assert made.matmul(N) == C
    assert made.codebook(Codebook.KMEANS, src=rows - 1) == R  # the bad one stays
    assert made.matmul(K) == C
    assert not made.codebook(Codebook.KMEANS)
    assert not made.matmul(K)
    assert made.codebook(Codebook.INTEGER, bad=-1) == R
    assert made.matmul(N) == C
    assert made.matmul(K) == C
    assert not made.codebook(Codebook.INTEGER, src=rows - 1)
    for _ in range(3):
        assert not made.matmul(N)
    assert made.matmul(N, slot=0, length=200, tokens=1) == M
    assert made.matmul(N, slot=1, length=77, tokens=2) == M  # the first slot is wrong
    assert made.matmul(D) == C
    assert not made.codebook(Codebook.KMEANS)
    assert not made.matmul(D)
    if not config.based:
        assert made.matmul(K, based=1) == R
        made._step(Opcode.WEIGHT_BASE, {"src": 0}, R)
        return made
    based(made, rows)
    return made


def based(made, rows) -> None:
    """Bases of every bit, before and between MATMULs that take them and others that do not."""
    K, D, R = MatmulMode.KMEANS, MatmulMode.DIRECT, CommandStatus.RANGE
    assert not made.matmul(K, based=1)  # the base after reset
    for base in (1, 0xFFFF, 1 << 16, 0x80000000, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA):
        assert not made.weight_base(base, src=int(made.rng.integers(rows)))
        for mode, is_based in ((K, 1), (K, 0), (D, 1), (D, 0)):
            assert not made.matmul(mode, based=is_based)
        assert not made.matmul(K, based=1, weights=0xFFFFFFFF)  # beyond the addresses
    assert made.weight_base(3, src=rows) == R  # the base stays
    assert made.weight_base(5, aborted=True)
    assert not made.matmul(K, based=1)
    assert made.matmul(K, based=1, aborted=True)
    # The codebook stays, bad or not, and a packet leaves the base.
    assert not made.codebook(Codebook.KMEANS)
    assert not made.weight_base(0x12345678, src=rows - 1)
    assert not made.codebook(Codebook.KMEANS)
    assert not made.matmul(K, based=1)
    assert made.codebook(Codebook.KMEANS, bad=-1) == R
    assert not made.weight_base(0x01020304)
    assert made.matmul(K, based=1) == CommandStatus.CODEBOOK_MISSING
    assert not made.codebook(Codebook.KMEANS)
    for base in (7, 8):
        assert not made.weight_base(base)
    assert not made.matmul(K, based=1)


@pytest.mark.telling("rounded", "rows", "based")
@pytest.mark.parametrize("case", CASES)
def test_matmul_issue(case, seed):
    rng = np.random.default_rng([seed, 100])
    machine, config = engine(*CASES[case])
    made = program(rng, machine, config)
    descriptors = [
        descriptor_layout.const(
            {"valid": 1, "integer": int(slot.integer), "length": slot.length,
             "rms_reciprocal": slot.rms_reciprocal, "outliers": 3, "scale": 1, "mean": 5}
        ).as_bits()
        for slot in made.slots
    ]  # fmt: skip
    simulate(
        KllmMatmulIssue(config),
        "tb.kllm.tb_matmul_issue",
        params={
            "steps": made.steps, "descriptors": descriptors, "answer": ANSWER,
            "fault_mask": ticket(Ticket(done=1, fault=(1 << len(CommandStatus)) - 1, groups=0,
                                        tokens=0, outputs=0)),
        },
        seed=seed,
    )  # fmt: skip
