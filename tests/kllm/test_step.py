"""Steps without a host: LOAD_AT, TOP_K, and one program for all tokens of a model.

Shown to fail:

- the position where the token's id belongs, or angles of another token;
- a limit one entry too high;
- ids that count from 0 in each piece;
- a place without a token that keeps its rows;
- the sampling of place 0 for the last token of a prompt.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import float_from_bits
from golden.kllm.assembler import Assembler, AssemblyError, assemble, disassemble
from golden.kllm.cache import Place
from golden.kllm.config import MACHINES, VectorShape
from golden.kllm.isa import COMMAND_WORDS, COMMANDS, CommandStatus, Index, Opcode, Unit, encode
from golden.kllm.layer.layout import Job
from golden.kllm.machine import Machine
from golden.kllm.model.host import ModelHost
from golden.kllm.model.host_image import StepPrograms
from golden.kllm.model.program import largest_chunk, pass_program, pieces, step_program
from golden.oaken.kv_engine import Request
from golden.paging.format import Op
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
    operands = COMMANDS[Opcode.LOAD_AT].defaults | wanted
    return machine, machine.step(encode(Opcode.LOAD_AT, 9, {}, operands)).status


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


def test_machines_without_a_batch() -> None:
    """Both opcodes are unknown there: reported as of unit LOAD, counted nowhere."""
    words_of_both = (
        "LOAD_AT address=0 rows=1 index=TOKEN limit=3 dst=0", "TOP_K src=0 length=16 first=0",
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
    """A command waits for LOAD_AT to write its rows, and LOAD_AT for TOP_K to read them."""
    asm = Assembler(PAGED)
    x, y = asm.vector(32, 2), asm.vector(32, 2)
    asm.load_at(address=0, rows=2, index=Index.TOKEN, limit=9, dst=x)
    asm.top_k(src=x)
    asm.load_at(address=0, rows=2, index=Index.POSITION, limit=9, dst=y)
    asm.load_at(address=0, rows=2, index=Index.POSITION, limit=9, dst=x)
    waits = [line.split("after=")[1] for line in disassemble(asm.words(), PAGED).splitlines()]
    assert waits == ["none", "LOAD:1", "none", "READ:1"]


# A model.

PROMPT = [3, 141, 59]


def opened(host: ModelHost) -> int:
    assert host.machine.cache is not None
    return host.machine.cache.request(Request(Op.OPEN)).sequence


def spoken(image, prompt, steps) -> list[int]:
    """Greedy tokens of passes whose logits the host reads."""
    host, made, place = ModelHost(image), [], 0
    for token in itertools.chain(prompt, made):
        if len(made) == steps:
            break
        logits = host.run(pass_program(image.layout, Job(1, place)), [token]).logits[0]
        place += 1
        if place >= len(prompt):
            made.append(int(torch.argmax(float_from_bits(logits))))
    return made


@pytest.mark.parametrize("head_dim", [32, 64])
def test_one_program_serves_every_step(head_dim: int) -> None:
    """Its ids are those of the logits, for a prompt token by token and in one step."""
    image = example.image(head_dim)
    wanted = spoken(image, PROMPT, 8)
    assert len(set(wanted)) > 1
    one = step_program(image.layout)
    host, made = ModelHost(image), list(PROMPT)
    for place in range(len(PROMPT) + 7):
        run = host.step(one, [Place(host.sequence, place, made[place])])
        if place >= len(PROMPT) - 1:
            made += run.ids
    assert made[len(PROMPT) :] == wanted
    host = ModelHost(image)
    prompt = step_program(image.layout, 3, logits=1)
    places = [Place(host.sequence, place, token) for place, token in enumerate(PROMPT)]
    made = host.step(prompt, places).ids
    for place in range(3, 10):
        made += host.step(one, [Place(host.sequence, place, made[-1])]).ids
    assert made == wanted


def test_sequences_in_one_step_are_those_alone() -> None:
    """Other lengths, other tokens, a place that is empty at times: the ids are those alone."""
    image = example.image()
    assert image.layout.config.batch == 4
    prompts = [[3, 141, 59], [7], [149, 0]]
    alone = [spoken(image, prompt, 6) for prompt in prompts]
    host, program = ModelHost(image), step_program(image.layout, 3)
    sequences = [host.sequence, opened(host), None]
    texts = [list(prompt) for prompt in prompts]
    done = [0, 0, 0]
    for step in range(12):
        if step == 2:  # one leaves, another joins
            host.machine.cache.request(Request(Op.FREE, sequences[1]))
            sequences[1], sequences[2] = None, opened(host)
        places = [
            Place(sequence, done[t], texts[t][done[t]])
            if sequence is not None and done[t] < len(prompts[t]) + 5 else None
            for t, sequence in enumerate(sequences)
        ]
        run = host.step(program, places)
        for t, place in enumerate(places):
            if place is not None:
                done[t] += 1
                if done[t] >= len(prompts[t]):
                    texts[t].append(run.ids[t])
    assert texts[0][3:] == alone[0]
    assert texts[1][1:] == alone[1][:2]
    assert texts[2][2:] == alone[2]


def test_a_vocabulary_in_pieces() -> None:
    image = example.image()
    narrow = dataclasses.replace(image.layout.config, vectors=VectorShape(rows=40))
    layout = dataclasses.replace(image.layout, config=narrow)
    assert len(pieces(layout, 1)) > 1
    few = dataclasses.replace(image, layout=layout)
    assert len(disassemble(step_program(layout).words, narrow).split("TOP_K")) > 2
    host, whole = ModelHost(few), ModelHost(image)
    for place, token in enumerate(PROMPT):
        made = host.step(step_program(layout), [Place(host.sequence, place, token)])
        same = whole.step(step_program(image.layout), [Place(whole.sequence, place, token)])
        assert made.ids == same.ids


def test_a_step_stops_at_a_failed_command() -> None:
    image = example.image()
    host = ModelHost(image)
    with pytest.raises(ArithmeticError, match=r"command 0 \(LOAD\): .*RANGE"):
        host.step(step_program(image.layout), [Place(host.sequence, 0, example.VOCABULARY)])
    with pytest.raises(ValueError, match="1 places needed, not 2"):
        host.step(step_program(image.layout), [None, None])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "of 1..40 tokens"), ((1, 2), r"logits must be 0\.\.1"), ((5,), "batch must be 5")],
)
def test_refused_steps(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        step_program(example.image().layout, *arguments)


def test_a_step_of_too_many_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step that the machine could not fetch: a host has those of fewer tokens.

    Shown to fail: ``ValueError`` of the host's image, which then has no program at all.
    """
    layout = example.image().layout
    counts = {n: len(step_program(layout, n).words) // COMMAND_WORDS for n in (1, 2, 3, 4)}
    most = counts[2]
    monkeypatch.setattr("golden.kllm.model.program.PROGRAM_MAX", most)
    wanted = f"a step of 3 tokens must have at most {most} commands, not {counts[3]}"
    with pytest.raises(ConfigError, match=wanted):
        step_program(layout, 3)
    fit = [tokens for tokens, count in counts.items() if count <= most]
    assert [tokens for tokens, ids in StepPrograms(layout).pairs() if ids == tokens] == fit
    assert largest_chunk(layout, 3, 0, steps=True) == 2
