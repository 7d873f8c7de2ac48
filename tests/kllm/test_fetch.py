"""Programs in the data memory: their bytes, their checks, and what the host gets for a run."""

import dataclasses
import random
import struct
import zlib

import numpy as np
import pytest
import torch

from golden.kllm.cache import Place
from golden.kllm.config import MACHINES
from golden.kllm.fetch import Answer, program_image, read_header, run
from golden.kllm.isa import (
    COMMAND_WORDS,
    PROGRAM_MAX,
    RUN_CHECKS,
    RUN_UNIT,
    CommandStatus,
    Opcode,
    RunStatus,
    Unit,
    command_set_word,
    encode,
)
from golden.kllm.machine import Machine
from golden.kllm.model.host import ModelHost
from golden.kllm.model.program import step_program
from golden.kllm.programs import random_program
from tests.kllm import model_example as example

SMALL = MACHINES["small"]
OK = RunStatus(0)


def loads(*rows: int) -> list[int]:
    """LOADs of so many rows each, to row 0, each after the one before it; 0: RANGE."""
    words = []
    for n, count in enumerate(rows):
        operands = {"address": 0, "rows": count, "dst": 0}
        words += encode(Opcode.LOAD, 99, {Unit.LOAD: n}, operands)
    return words


def placed(image: bytes, row: int = 5, after: int = 3, config=SMALL) -> Machine:
    """A machine with the image at ``row`` of a memory that ends ``after`` rows after it."""
    data = np.zeros(32 * (row + after) + len(image), dtype=np.uint8)
    data[32 * row : 32 * row + len(image)] = np.frombuffer(image, dtype=np.uint8)
    return Machine(config, data)


def test_bytes_of_a_program() -> None:
    """The header by struct and zlib alone; the commands follow it as they are."""
    words = loads(1, 2, 3)
    image = program_image(words, SMALL)
    head, rest = image[:64], image[64:]
    assert head[:4] == b"SZPR"
    fields = struct.unpack("<16I", head)
    assert fields[1:5] == (command_set_word(), SMALL.word, 3, zlib.crc32(rest))
    assert not any(fields[5:15])
    assert fields[15] == zlib.crc32(head[:60])
    assert struct.unpack("<48I", rest) == tuple(words)
    for wrong in ([], words[:-1], loads(1) * (PROGRAM_MAX + 1)):
        with pytest.raises(ValueError, match=r"must have 1\.\.65535 commands of 16 words"):
            program_image(wrong, SMALL)


def test_machines_have_their_words() -> None:
    other = dataclasses.replace(SMALL, batch=1)
    assert len({each.word for each in (*MACHINES.values(), other)}) == len(MACHINES) + 1


@pytest.mark.parametrize("checks", [0, RUN_CHECKS])
def test_a_random_program_runs_as_the_hosts(seed: int, checks: int) -> None:
    """The same rows and words; a second run of the same image does the same again."""
    program = random_program(SMALL, seed, 40)
    image = program_image(program.words, SMALL)
    data = np.concatenate((program.data, np.frombuffer(image, np.uint8)))
    machine = Machine(SMALL, data, program.weights)
    soft = 0
    for result in program.results:
        soft |= int(result.status)
    for _ in range(3):
        answer = run(machine, checks | (len(data) - len(image)) // 32)
        assert answer == Answer(soft, RUN_UNIT, len(program.results))
        assert machine.readback == program.readback
        assert torch.equal(machine.vector, program.vector)


def test_the_first_failed_command_is_the_answer() -> None:
    image = program_image(loads(1, 0, 1, 0), SMALL)
    answer = run(placed(image), 5)
    assert answer == Answer(CommandStatus.RANGE, Unit.LOAD, 1)
    assert answer.word == CommandStatus.RANGE | 1 << 16
    words = loads(1, 1)
    words[COMMAND_WORDS] |= 0xFF  # no such opcode
    assert run(placed(program_image(words, SMALL)), 5) == (CommandStatus.MALFORMED, Unit.LOAD, 1)
    words = loads(1, 1)
    words[COMMAND_WORDS + 1] = 7  # of seven LOADs there is one
    assert run(placed(program_image(words, SMALL)), 5) == (CommandStatus.DEPENDENCY, Unit.LOAD, 1)


def test_counts_go_on_from_run_to_run() -> None:
    """Past 2**16 commands of a unit the waits of an image are still met."""
    machine = placed(program_image(loads(*[1] * 9), SMALL))
    machine.issued[Unit.LOAD] = (1 << 16) - 13
    for _ in range(4):
        assert run(machine, 5) == Answer(0, RUN_UNIT, 9)


@pytest.mark.parametrize("checks", [0, RUN_CHECKS])
def test_any_damaged_bit_is_found(seed: int, checks: int) -> None:
    """No command runs with a damaged header, nor, with RUN_CHECKS, before damaged commands."""
    image = program_image(loads(1, 2, 1), SMALL)
    rng = random.Random(seed)
    for bit in [*range(0, 512, 7), *(rng.randrange(512, 8 * len(image)) for _ in range(60))]:
        damaged = bytearray(image)
        damaged[bit // 8] ^= 1 << bit % 8
        machine = placed(bytes(damaged))
        answer = run(machine, checks | 5)
        assert answer.unit == RUN_UNIT
        if bit < 512:
            assert answer[::2] == (RunStatus.HEADER, 0)
        else:
            assert answer[::2] == (RunStatus.DAMAGED, 0 if checks else 3)
        assert not any(machine.issued.values()) or (bit >= 512 and not checks)


def test_foreign_and_missing_programs() -> None:
    for config in (dataclasses.replace(SMALL, batch=1), MACHINES["table1"]):
        assert run(placed(program_image(loads(1), config)), 5) == (RunStatus.FOREIGN, RUN_UNIT, 0)
    image = bytearray(program_image(loads(1), SMALL))
    image[4] ^= 1
    image[60:64] = struct.pack("<I", zlib.crc32(bytes(image[:60])))
    assert run(placed(bytes(image)), 5).status == RunStatus.FOREIGN
    for count in (0, PROGRAM_MAX + 1, 1 << 31):
        image[12:16] = struct.pack("<I", count)
        image[60:64] = struct.pack("<I", zlib.crc32(bytes(image[:60])))
        assert run(placed(bytes(image)), 5).status == RunStatus.HEADER
    machine = placed(bytes(image))
    for row in (0, 4, 6):
        assert run(machine, row).status == RunStatus.HEADER
    for row in (11, 12, RUN_CHECKS - 1):
        assert run(machine, row).status == RunStatus.BUS_ERROR
    assert not any(machine.issued.values())


@pytest.mark.parametrize("row", range(12))
def test_errors_of_the_memory(row: int) -> None:
    """The commands before the error run, but none after a check of the whole program."""
    image = program_image(loads(1, 0, 1, 1, 1), SMALL)
    machine = placed(image)
    machine.data.faults = {5 + row}
    assert run(machine, RUN_CHECKS | 5) == (RunStatus.BUS_ERROR, RUN_UNIT, 0)
    given = max(row - 2, 0) // 2
    assert run(machine, 5) == (RunStatus.BUS_ERROR, RUN_UNIT, given)
    assert machine.issued[Unit.LOAD] == given


def test_programs_that_end_beyond_the_addresses() -> None:
    image = program_image(loads(1, 1), SMALL)
    machine = placed(image)
    assert run(machine, 5, 11) == (OK, RUN_UNIT, 2)
    for rows_max in (10, 7, 6):
        assert run(machine, 5, rows_max) == (RunStatus.BUS_ERROR, RUN_UNIT, 0)
    assert read_header(machine.data, 5, SMALL, 11)[1] == OK


def test_a_model_speaks_by_one_image() -> None:
    """The host gives places and RUN: the ids are those of steps whose words it sends."""
    image = example.image()
    program = step_program(image.layout)
    sent, host = ModelHost(image), ModelHost(image)
    machine = host.machine
    rows = len(machine.data.data) // 32
    stored = program_image(program.words, image.layout.config)
    machine.data.data = np.concatenate((machine.data.data, np.frombuffer(stored, np.uint8)))
    assert machine.cache is not None
    token = 3
    for place in range(4):
        wanted = sent.step(program, [Place(sent.sequence, place, token)]).ids
        machine.cache.batch[0] = Place(host.sequence, place, token)
        answer = run(machine, rows | RUN_CHECKS * (place == 0))
        assert answer == Answer(0, RUN_UNIT, len(program.words) // COMMAND_WORDS)
        assert machine.readback == wanted
        (token,) = wanted
