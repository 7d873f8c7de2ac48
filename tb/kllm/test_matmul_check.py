"""KllmMatmulCheck against golden.kllm.issue.is_outside.

Shown to fail with:

- a span that forgets the stride
- tokens that share too many beats let through
- the row after the last one taken as inside
- the words of an integer packet for one of K-Means
- a bit of the row after the last one stuck at 0
- bit 11 of a codebook's ``src`` stuck at 0
- a bit of the number of rows of an output stuck at 0
"""

import dataclasses

import numpy as np
import pytest

from golden.kllm.format import beats
from golden.kllm.isa import Codebook, MatmulMode, Opcode, encode, row_count
from golden.kllm.issue import codebook_fault, codebook_rows, is_outside
from hdl.kllm.matmul.check import KllmMatmulCheck
from hdl.kllm.room import BLOCKS
from tb.kllm.support.commands import command_payload
from tb.simulate.run import simulate

SMALL = BLOCKS["kllm_accelerator"].configs["small"]
REPLAY = 13  # beats that several tokens may share: fewer than those of the longest token
MACHINE = dataclasses.replace(SMALL.machine, replay_beats=REPLAY)
CONFIG = dataclasses.replace(SMALL.matmul_config, replay_beats=REPLAY)
RIGHT = {
    "mode": 0, "tokens": 2, "slot": 1, "length": 64, "outputs": 40, "weights": 0, "dst": 10,
    "stride": 8, "src": 20, "src_stride": 9, "fold_norm": 0, "based": 0,
}  # fmt: skip


def operands(rng) -> list[dict]:
    """MATMULs: one operand at its limits at a time, and random ones."""
    rows = MACHINE.vector_rows
    edges = {
        "mode": (0, 1, 2, 3), "tokens": (0, 1, 2, 3, 4, 255), "slot": (0, 2, 3, 4, 255),
        "length": (0, 1, 64, 65, 16 * REPLAY, 16 * REPLAY + 1, 256, 257, 16383),
        "outputs": (0, 1, 16, 17, 65535),
        "dst": (0, rows - 12, rows - 11, rows - 10, rows - 1, rows, 65535),
        "stride": (0, 100, 242, 243, 244, 65535), "src": (0, rows - 13, rows - 12, rows, 65535),
        "src_stride": (0, 231, 232, 233, 65535), "fold_norm": (0, 1), "based": (0, 0, 0, 0, 1),
    }  # fmt: skip
    found = [
        RIGHT | {"mode": mode, name: value}
        for mode in MatmulMode
        for name, values in edges.items()
        for value in values
    ]
    for _ in range(300):
        found.append({name: int(rng.choice(values)) for name, values in edges.items()})
        found[-1] |= {"weights": int(rng.integers(0, 1 << 32))}
    return found + near_limits() + far_ends(rng) + last_rows(rng) + output_rows()


def near_limits() -> list[dict]:
    """MATMULs with one operand a power of two above its limit, or one bit off it.

    Shown to fail: bit 4 of the length or of the last slot ignored where it is compared.
    """
    rows, found = MACHINE.vector_rows, []
    limits = {
        "tokens": (8, 3), "slot": (8, 2), "length": (14, 256), "dst": (16, rows - 11),
        "src": (16, rows - 13), "stride": (16, 243), "src_stride": (16, 232),
    }  # fmt: skip
    for mode in MatmulMode:
        for name, (bits, limit) in limits.items():
            for bit in range(bits):
                values = {limit + (1 << bit), limit ^ 1 << bit}
                # One token alone: the beats of several have a limit of their own.
                alone = {"tokens": 1} if name == "length" else {}
                found += [
                    RIGHT | {"mode": mode} | alone | {name: value}
                    for value in sorted(values)
                    if value < 1 << bits
                ]
    return found


def far_ends(rng) -> list[dict]:
    """MATMULs whose last row is a power of two and little more: one bit alone shows the fault."""
    found = []
    near = RIGHT | {"mode": MatmulMode.DIRECT, "length": 4, "outputs": 4, "stride": 0,
                    "src_stride": 0}  # fmt: skip
    for first, stride in (("src", "src_stride"), ("dst", "stride")):
        for bit in range(9, 24):
            end = (1 << bit) - 1 + int(rng.integers(0, MACHINE.vector_rows + 1))
            steps = int(rng.integers(max(-(-end // 65535), 1), 255))
            each = near | {"tokens": steps + 1}
            assert not is_outside(MACHINE, each)
            each[stride] = min(end // steps, 65535)
            each[first] = end - steps * each[stride]
            found.append(each)
    return found


def last_rows(rng) -> list[dict]:
    """MATMULs whose last row is the last one of the memory or the first beyond, each span odd.

    Shown to fail: bit 0 of the product of stride and tokens stuck at 0.
    """
    found = []
    near = RIGHT | {"mode": MatmulMode.DIRECT, "length": 4, "outputs": 4, "stride": 0,
                    "src_stride": 0, "src": 0, "dst": 0}  # fmt: skip
    for first, stride in (("src", "src_stride"), ("dst", "stride")):
        for steps in (1, 3, 5):
            each = near | {"tokens": steps + 1, stride: 2 * int(rng.integers(20)) + 1}
            for beyond in (False, True):
                end = MACHINE.vector_rows - 1 + beyond
                found.append(each | {first: end - steps * each[stride]})
                assert is_outside(MACHINE, found[-1]) == beyond
    return found


def output_rows() -> list[dict]:
    """MATMULs of 1, 2, 4, ... rows of outputs: the last row is inside, or the first beyond.

    More rows than the memory has are outside without any other reason.
    """
    found = []
    near = RIGHT | {"tokens": 1, "length": 4}
    for mode in (MatmulMode.KMEANS, MatmulMode.DIRECT):
        for bit in range(12):
            room = MACHINE.vector_rows - (1 << bit)
            for dst in sorted({max(room, 0), max(room + 1, 0)}):
                found.append(near | {"mode": mode, "outputs": 16 << bit, "dst": dst, "src": 0})
                assert is_outside(MACHINE, found[-1]) == (dst > room)
    return found


@pytest.mark.telling("half", "based")
@pytest.mark.parametrize("packets", ["whole", "half", "based"])
def test_matmul_check(packets, seed):
    """Shown to fail: the words of a whole packet for half of one, or for a base.

    So is a fault of ``based`` with bases.
    """
    rng = np.random.default_rng([seed, 101])
    steps = []
    half, based = packets == "half", packets == "based"
    machine = dataclasses.replace(
        MACHINE, antisymmetric=half, batch=int(based), experts=2 * int(based)
    )
    lane = dataclasses.replace(CONFIG.lane, antisymmetric=half)
    for o in operands(rng):
        # Sizes of a length that no slot has are not used.
        sizes = [o["length"], row_count(o["length"]), beats(o["length"], MACHINE.elements)]
        words = encode(Opcode.MATMUL, 0, {}, o)
        command = command_payload([int(Opcode.MATMUL), *words[1:]])
        steps.append({"command": command, "sizes": sizes, "fault": is_outside(machine, o)})
    for kind in Codebook:
        rows = codebook_rows(machine, 0, kind)
        last = machine.vector_rows - rows.rows
        for src in (0, last, last + 1, 65535, *(1 << bit for bit in range(16))):
            words = encode(Opcode.LANE_CODEBOOK, 0, {}, {"src": src, "kind": int(kind)})
            steps.append(
                {
                    "command": command_payload([int(Opcode.LANE_CODEBOOK), *words[1:]]),
                    "sizes": [rows.words, rows.rows, None],
                    "fault": bool(codebook_fault(machine, codebook_rows(machine, src, kind), ())),
                }
            )
    for src in (0, machine.vector_rows - 1, machine.vector_rows, 65535) if based else ():
        words = encode(Opcode.WEIGHT_BASE, 0, {}, {"src": src})
        steps.append(
            {
                "command": command_payload([int(Opcode.WEIGHT_BASE), *words[1:]]),
                "sizes": [2, 1, None],
                "fault": src >= machine.vector_rows,
            }
        )
    assert {step["fault"] for step in steps} == {False, True}
    order = rng.permutation(len(steps))
    simulate(
        KllmMatmulCheck(dataclasses.replace(CONFIG, lane=lane, based=based)),
        "tb.kllm.tb_matmul_check",
        params={"steps": [steps[n] for n in order]},
        seed=seed,
    )
