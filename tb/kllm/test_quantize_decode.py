"""KllmQuantizeDecode against golden.kllm.quantizer.faults: commands at every limit and beyond it.

Shown to fail with:

- one row, slot or element more than there are
- the offset of the last token cut to 16 bits
- thresholds of an ONLINE token refused, a norm of an integer one
- CAPACITY of an OFFLINE token, or with the slot not touched
- a codebook of one row
"""

import numpy as np
import pytest

from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.format import TokenKind
from golden.kllm.isa import (
    COMMANDS,
    OPERANDS_MAX,
    ROW_ELEMENTS,
    CommandStatus,
    Opcode,
    OutlierMode,
)
from golden.kllm.quantizer import faults
from hdl.kllm.engine import command_layout
from hdl.kllm.quantize.decode import KllmQuantizeDecode, KllmQuantizeDecodeConfig
from hdl.kllm.quantize.payloads import quantize_job_layout
from tb.simulate.run import simulate

CONFIGS = {
    "default": KllmQuantizeDecodeConfig(),
    "largest": KllmQuantizeDecodeConfig(
        vectors=VectorShape(rows=1 << 16),
        slot=SlotShape(slots=256, elements=16383, outliers_max=16383),
    ),
    "small": KllmQuantizeDecodeConfig(
        vectors=VectorShape(rows=20),
        slot=SlotShape(slots=3, elements=100, outliers_max=9, integer_bits=0),
    ),
}
COMMAND_COUNT = 1500
OPERANDS = {operand.name: operand.bits for operand in COMMANDS[Opcode.QUANTIZE].operands}
OPCODES = (Opcode.ACTIVATION_CODEBOOK, Opcode.QUANTIZE, Opcode.QUANTIZE_INTEGER)


def near(rng, limit: int, bits: int) -> int:
    """A word at a limit, next to it, or anywhere."""
    word = limit + int(rng.integers(-1, 2)) if rng.random() < 0.6 else int(rng.integers(1 << bits))
    return min(max(word, 0), (1 << bits) - 1)


def random_operands(rng, config: KllmQuantizeDecodeConfig) -> dict[str, int]:
    """Operands in range in most cases; one of them, or a sum of them, at its limit."""
    length = int(rng.integers(1, config.slot.elements + 1))
    rows = -(-length // ROW_ELEMENTS)
    tokens = int(rng.integers(1, min(config.slot.slots, 255) + 1))
    spare = max(config.vectors.rows - rows, 0)
    stride = int(rng.integers(0, spare // max(tokens - 1, 1) + 1))
    last = max(spare - stride * (tokens - 1), 0)
    src = int(rng.integers(0, last + 1))
    k = rng.integers(0, min(config.slot.outliers_max, length) // 2 + 1, 2)
    operands = {name: int(rng.integers(1 << bits)) for name, bits in OPERANDS.items()}
    operands |= {
        "src": src, "stride": stride, "tokens": tokens, "length": length,
        "slot": config.slot.slots - tokens, "k_max": int(k[0]), "k_min": int(k[1]),
        "norm": int(rng.integers(0, 3)),
    }  # fmt: skip
    operands["thresholds"] &= 0xFBFFFBFF
    limits = {
        "src": last, "stride": 0x8000, "tokens": tokens, "length": config.slot.elements,
        "slot": operands["slot"], "k_max": length - operands["k_min"], "norm": 3,
        "k_min": config.slot.outliers_max - operands["k_max"], "thresholds": 0x7C000000,
    }  # fmt: skip
    if rng.random() < 0.7:
        name = str(rng.choice(list(limits)))
        operands[name] = near(rng, limits[name], OPERANDS[name])
    if rng.random() < 0.1:
        operands[str(rng.choice(["tokens", "length"]))] = 0
    return operands


def expected(opcode: int, operands: dict[str, int], config: KllmQuantizeDecodeConfig) -> dict:
    known = opcode in OPCODES[: 3 if config.slot.integer_bits else 2]
    online = operands["mode"] == OutlierMode.ONLINE
    kinds = {
        Opcode.ACTIVATION_CODEBOOK: TokenKind.CODEBOOK,
        Opcode.QUANTIZE: TokenKind.ONLINE if online else TokenKind.OFFLINE,
        Opcode.QUANTIZE_INTEGER: TokenKind.INTEGER,
    }
    kind = kinds[Opcode(opcode)] if known else TokenKind.OFFLINE
    status = CommandStatus.MALFORMED
    if known:
        status = faults(
            Opcode(opcode), operands, vector_rows=config.vectors.rows, slots=config.slot.slots,
            slot_elements=config.slot.elements,
        )  # fmt: skip
    dead, touches = bool(status), not status and kind != TokenKind.CODEBOOK
    many = operands["k_max"] + operands["k_min"] > config.slot.outliers_max
    if touches and kind == TokenKind.ONLINE and many:
        dead, status = True, CommandStatus.CAPACITY
    kept = ("src", "stride", "length", "slot", "k_max", "k_min", "norm", "epsilon")
    rows = 2 if kind == TokenKind.CODEBOOK else -(-operands["length"] // ROW_ELEMENTS)
    return {name: operands[name] for name in kept} | {
        "kind": int(kind), "dead": int(dead), "touches": int(touches), "status": int(status),
        "rows": rows, "tokens": operands["tokens"] if touches else 1,
        "upper": operands["thresholds"] >> 16, "lower": operands["thresholds"] & 0xFFFF,
    }  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_quantize_decode(name, seed):
    rng, config = np.random.default_rng([seed, 95]), CONFIGS[name]
    words: dict[str, list[int]] = {"command": [], "job": []}
    seen = set()
    for _ in range(COMMAND_COUNT):
        opcode = int(rng.choice([*OPCODES, *OPCODES, 0, 0x13, 0x21, 0xFF]))
        operands = random_operands(rng, config)
        table = COMMANDS[Opcode.QUANTIZE]
        given = [0] * OPERANDS_MAX
        for operand, word in operands.items():
            given[table.position(operand)] = word
        command = {"opcode": opcode, "operand": given}
        words["command"].append(command_layout.const(command).as_bits())
        job = expected(opcode, operands, config)
        seen.add((job["kind"], job["dead"], job["touches"], job["status"]))
        words["job"].append(quantize_job_layout.const(job).as_bits())
    assert {0, 1, int(CommandStatus.RANGE), int(CommandStatus.CAPACITY)} <= {
        status for *_, status in seen
    }
    simulate(KllmQuantizeDecode(config), "tb.kllm.tb_quantize_decode",
             params={"words": words}, seed=seed)  # fmt: skip
