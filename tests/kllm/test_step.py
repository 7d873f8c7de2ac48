"""Commands of a step without a host: LOAD_AT and ARGMAX.

Shown to fail:

- the position where the token's id belongs;
- a limit one entry too high;
- of equal logits the last one, or the one of a later piece;
- NaN as the largest number, -0 below +0;
- ids that count from 0 in each piece;
- a place without a token that keeps its rows.
"""

import math
import random

import numpy as np
import pytest
import torch

from golden.fp16.ops import float_from_bits
from golden.kllm.argmax import Best, fold, keys
from golden.kllm.assembler import Assembler, AssemblyError, assemble, disassemble
from golden.kllm.cache import Place
from golden.kllm.config import MACHINES
from golden.kllm.isa import NOBODY, CommandStatus, Index, Opcode, Unit, encode
from golden.kllm.machine import Machine
from tests.kllm import model_example as example

PAGED = example.paged()
SMALL = MACHINES["small"]


# LOAD_AT.


def table(entries: int = 6, rows: int = 3) -> np.ndarray:
    """Rows of a data memory: each row has its number in all bytes."""
    return np.repeat(np.arange(entries * rows + 7, dtype=np.uint8), 32)


def loaded(places, *, faults=(), **operands) -> tuple[Machine, CommandStatus]:
    """A machine whose V was 0xFFFF, after LOAD_AT of entries of three rows that begin at row 7."""
    machine = Machine(PAGED, table())
    machine.vector[:] = 0xFFFF
    machine.data.faults = set(faults)
    assert machine.cache is not None
    machine.cache.batch[: len(places)] = places
    wanted = {"address": 7, "rows": 3, "index": Index.TOKEN, "limit": 6, "dst": 20, "stride": 5}
    wanted |= {"tokens": len(places)} | operands
    return machine, machine.step(encode(Opcode.LOAD_AT, 9, {}, wanted)).status


def row(number: int) -> int:
    return number | number << 8


def test_a_token_and_a_position_choose_their_entries() -> None:
    places = [Place(1, position=2, token=5), None, Place(0, position=4, token=0)]
    for index, entries in ((Index.TOKEN, (5, 0)), (Index.POSITION, (2, 4))):
        machine, status = loaded(places, index=index)
        assert not status
        for first, entry in zip((20, 30), entries, strict=True):
            wanted = [row(7 + 3 * entry + n) for n in range(3)]
            assert machine.vector[first : first + 3, 0].tolist() == wanted
            found = machine.vector[first : first + 3]
            assert (found == found[:, :1]).all()
        assert not machine.vector[25:28].any()
        others = [*range(20), 23, 24, 28, 29, *range(33, PAGED.vector_rows)]
        assert (machine.vector[others] == 0xFFFF).all()


def test_an_index_without_an_entry() -> None:
    """Zeros and RANGE; the other tokens are as without it."""
    machine, status = loaded([Place(0, 0, 6), Place(1, 0, 5), Place(2, 0, (1 << 32) - 1)])
    assert status == CommandStatus.RANGE
    assert not machine.vector[[*range(20, 23), *range(30, 33)]].any()
    assert machine.vector[25, 0] == row(22)
    assert loaded([Place(0, 0, 0)], limit=0)[1] == CommandStatus.RANGE


def test_an_error_of_the_memory_is_that_of_one_token() -> None:
    machine, status = loaded([Place(0, 0, 1), Place(1, 0, 2), Place(2, 0, 6)], faults=[12])
    assert status == CommandStatus.BUS_ERROR | CommandStatus.RANGE
    assert (machine.vector[20:23] == 0x7E00).all()
    assert machine.vector[25, 0] == row(13)
    assert not machine.vector[30:33].any()
    machine, status = loaded([Place(0, 0, 6)], limit=7)  # beyond the end of the memory
    assert status == CommandStatus.BUS_ERROR


@pytest.mark.parametrize(
    "wrong",
    [{"rows": 0}, {"tokens": 0}, {"tokens": 5}, {"dst": 254}, {"tokens": 4, "dst": 239},
     {"tokens": 2, "stride": 65535}],
)  # fmt: skip
def test_operands_out_of_range(wrong: dict[str, int]) -> None:
    machine, status = loaded([Place(0, 0, 1)], **wrong)
    assert status == CommandStatus.RANGE
    assert (machine.vector == 0xFFFF).all()


# ARGMAX.


def largest(pieces) -> tuple[int, bool]:
    """(id, whether one is NaN) of pieces (first, real numbers), by Python's floats."""
    ranked, found = [], False
    for first, numbers in pieces:
        for n, number in enumerate(numbers):
            if math.isnan(number):
                found = True
            else:
                ranked.append((number, -(first + n)))
    return (-max(ranked)[1] if ranked else NOBODY), found


def test_best_of_pieces() -> None:
    """All words near each other, zeros of both signs, infinities and NaN, pieces in any order."""
    rng = random.Random(3)
    few = [0x0000, 0x8000, 0x0001, 0x8001, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x3C00, 0x7BFF, 0xFBFF]
    seen = set()
    for _ in range(400):
        some = [few, few[:2], [0x7C01, 0xFFFF], range(1 << 16)][rng.randrange(4)]
        firsts = rng.sample(range(0, 1 << 24, 100), rng.randint(1, 4))
        given = [(f, [rng.choice(some) for _ in range(rng.randint(1, 60))]) for f in firsts]
        held, is_nan = None, False
        for first, words in given:
            held, found = fold(torch.tensor(words), first, held)
            is_nan |= found
        real = [(f, float_from_bits(torch.tensor(words)).tolist()) for f, words in given]
        made = NOBODY if held is None else held.id
        assert (made, is_nan) == largest(real)
        seen.add((held is None, is_nan))
    assert seen == {(False, False), (False, True), (True, True)}


def test_keys_have_the_order_of_the_numbers() -> None:
    words = torch.arange(1 << 16)
    words = words[~float_from_bits(words).isnan()]
    order = torch.argsort(float_from_bits(words))
    real, key = float_from_bits(words)[order], keys(words)[order]
    assert torch.equal(key.diff() > 0, real[1:] > real[:-1])
    assert (key.diff() >= 0).all()


def chosen(operands: dict[str, int], vectors: torch.Tensor, machine=None):
    """(status, words, machine) of ARGMAX of vectors (tokens, rows, 16) from row 3 on."""
    machine = machine or Machine(PAGED)
    machine.readback = []
    tokens, rows, _ = vectors.shape
    machine.vector[3 : 3 + tokens * rows] = vectors.reshape(-1, 16)
    wanted = {"src": 3, "stride": rows, "tokens": tokens, "length": 16 * rows, "first": 0}
    command = encode(Opcode.ARGMAX, 1, {}, wanted | {"begin": 1, "end": 1} | operands)
    return machine.step(command).status, machine.readback, machine


def test_tokens_of_a_command() -> None:
    vectors = torch.zeros(3, 2, 16, dtype=torch.int64)
    vectors[0, 1, 3] = vectors[0, 1, 7] = 0x3C00
    vectors[1] = 0x7E00
    vectors[2] = 0xFC00
    status, words, machine = chosen({"first": 100, "end": 0}, vectors)
    assert (status, words) == (CommandStatus.NONFINITE, [])
    assert machine.best == [Best(0x3C00, 119), None, Best(-0x7C00, 100), None]
    vectors[:] = 0x3C00
    vectors[:, 0, 1] = 0x3C01
    status, words, machine = chosen({"first": 90, "begin": 0, "tokens": 2}, vectors, machine)
    assert (status, words) == (CommandStatus(0), [91, 91])
    assert machine.best[2] == Best(-0x7C00, 100)
    vectors[:] = 0x3C00
    status, words, _ = chosen({"first": 0, "begin": 0}, vectors, machine)
    assert (status, words) == (CommandStatus(0), [91, 91, 0])


def test_elements_after_the_length_do_not_count() -> None:
    vectors = torch.zeros(1, 2, 16, dtype=torch.int64)
    vectors[0, 1, 5:] = 0x7E00
    vectors[0, 1, 4] = 1
    assert chosen({"length": 21}, vectors)[:2] == (CommandStatus(0), [20])
    assert chosen({"length": 22}, vectors)[:2] == (CommandStatus.NONFINITE, [20])
    assert chosen({"length": 16}, vectors)[:2] == (CommandStatus(0), [0])
    assert chosen({"length": 22}, vectors * 0 + 0x7E00)[:2] == (CommandStatus.NONFINITE, [NOBODY])


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"tokens": 0}, {"tokens": 5}, {"src": 255}, {"stride": 255}]
)
def test_refused_argmax(wrong: dict[str, int]) -> None:
    """Nothing is given, and what was best stays."""
    vectors = torch.zeros(2, 2, 16, dtype=torch.int64)
    _, _, machine = chosen({"first": 7}, vectors)
    kept = list(machine.best)
    assert chosen(wrong, vectors, machine)[:2] == (CommandStatus.RANGE, [])
    assert machine.best == kept


def test_machines_without_a_batch() -> None:
    """Both opcodes are unknown there: reported as of unit LOAD, counted nowhere."""
    words_of_both = (
        "LOAD_AT address=0 rows=1 index=TOKEN limit=3 dst=0", "ARGMAX src=0 length=16 first=0",
    )  # fmt: skip
    words = assemble("\n".join(words_of_both), PAGED)
    machine = Machine(SMALL)
    results = machine.run(words)
    assert [result.status for result in results] == [CommandStatus.MALFORMED] * 2
    assert all(result.unit == Unit.LOAD for result in results)
    assert not any(machine.issued.values())
    assert assemble(disassemble(words, PAGED), PAGED) == words
    for refused in words_of_both:
        with pytest.raises(AssemblyError, match="has no unit CACHE"):
            assemble(refused, SMALL)
    with pytest.raises(AssemblyError, match="tokens of the destination overlap"):
        assemble("LOAD_AT address=0 rows=2 index=0 limit=1 dst=0 stride=1 tokens=2", PAGED)


def test_waits_of_both() -> None:
    """A command waits for LOAD_AT to write its rows, and LOAD_AT for ARGMAX to read them."""
    asm = Assembler(PAGED)
    x, y = asm.vector(32, 2), asm.vector(32, 2)
    asm.load_at(address=0, rows=2, index=Index.TOKEN, limit=9, dst=x)
    asm.argmax(src=x)
    asm.load_at(address=0, rows=2, index=Index.POSITION, limit=9, dst=y)
    asm.load_at(address=0, rows=2, index=Index.POSITION, limit=9, dst=x)
    waits = [line.split("after=")[1] for line in disassemble(asm.words(), PAGED).splitlines()]
    assert waits == ["none", "LOAD:1", "none", "READ:1"]
