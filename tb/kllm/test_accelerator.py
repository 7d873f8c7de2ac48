"""KllmAccelerator against golden.kllm.machine: whole programs, every status and word read back.

Shown to fail:

- both readers of the functional unit given the other's rows;
- results of the functional unit one row off;
- slot entries of the functional unit those of readback;
- a weight port given another's words;
- errors of a weight port lost;
- DECERR taken for OKAY;
- an abort that lets queued commands begin;
- the words of an incomplete command kept through an abort;
- the readers of the data port, or the statuses of LOAD and READ, exchanged;
- REQUEST and BATCH exchanged, and a RESULT that is lost;
- an abort of which a fetched program hears nothing;
- ``idle`` without the program that is fetched, and a CONTROL that does not show it.

``test_timing`` fails where latency, interval or delay of the block's timing is off by one.
``test_a_hang_is_found`` shows that the host's rule of silence ends a run.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import tb.simulate.run
from golden.axi.format import RESP_DECERR, RESP_OKAY, RESP_SLVERR
from golden.kllm.assembler import Assembler
from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig, PortShape, SlotShape, VectorShape
from golden.kllm.engines import answer_word, place_words, request_words
from golden.kllm.fetch import program_image
from golden.kllm.fetch import run as run_program
from golden.kllm.format import groups, weight_port_words
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    FAILED,
    ROW_BYTES,
    ROW_ELEMENTS,
    RUN_CHECKS,
    Binary,
    CommandStatus,
    Function,
    Opcode,
    Unit,
    decode,
    encode,
    row_count,
)
from golden.kllm.machine import Machine
from golden.kllm.programs import Program, Step, random_program
from golden.kllm.timing import FunctionCycles
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op, Status
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.kllm.function.pipeline import KllmFunctionPipelineConfig
from hdl.kllm.room import BLOCKS
from hdl.target import built_for
from tb.kllm.support.hosted import hosted_program
from tb.kllm.support.rebase import counted, rebase

SMALL = BLOCKS["kllm_accelerator"].configs["small"]
WIDE = dataclasses.replace(SMALL, functions=8)
CACHED = BLOCKS["kllm_accelerator"].configs["small_cache"]
TWO = BLOCKS["kllm_accelerator"].configs["small_cache2"]
FORKED = BLOCKS["kllm_accelerator"].configs["small_forks"]
ROWS = dataclasses.replace(
    CACHED, ahead=True, banks=2,
    machine=dataclasses.replace(CACHED.machine, ports=PortShape(ports=8, bits=256)),
    build=dataclasses.replace(CACHED.build, packet_words=16)
)  # fmt: skip
EXPERTS = dataclasses.replace(CACHED, machine=dataclasses.replace(CACHED.machine, experts=3))
EXPERTS_BY_ROW = dataclasses.replace(ROWS, machine=dataclasses.replace(ROWS.machine, experts=2))
FIXED = {
    "fixed16": dataclasses.replace(SMALL.machine, product="fixed16"),
    "fixed12_half": dataclasses.replace(SMALL.machine, product="fixed12", antisymmetric=True),
}


RESPONSES = {
    Status.OK: RESP_OKAY, Status.SLAVE_ERROR: RESP_SLVERR, Status.DECODE_ERROR: RESP_DECERR,
}  # fmt: skip


@functools.cache
def model(config: KllmAcceleratorConfig = SMALL, target: str = "asic"):
    """Built once for all tests of a process: even from the cache it takes its time."""
    with built_for(target):
        return tb.simulate.run.build_model(KllmAccelerator(config))


def as_vectors(
    program: Program, words=None, data_faults=None, weight_faults=None, resp=None, config=SMALL
):
    """A golden program as the bench takes it: no golden types cross into the simulator.

    words, data_faults, weight_faults: in place of the program's own. resp: response of words with
    a fault; None: SLVERR and DECERR in turn.
    """
    words = [int(word) for word in (program.words if words is None else words)]
    machine = Machine(config.machine, program.data, program.weights)
    steps = {each.first: each for each in program.steps}
    for request, status in program.requests:
        assert machine.cache is not None
        assert machine.cache.request(request).status == status
    machine.data.faults = set(program.data_faults if data_faults is None else data_faults)
    weight_faults = program.weight_faults if weight_faults is None else weight_faults
    for memory, faults in zip(machine.weights, weight_faults, strict=True):
        memory.faults = set(faults)
    results, reads = [], []
    for first in range(0, len(words), COMMAND_WORDS):
        before = len(machine.readback)
        if step := steps.get(first // COMMAND_WORDS):
            assert machine.cache is not None
            machine.cache.batch, machine.cache.memory = list(step.batch), list(step.memory)
        results.append(machine.step(words[first : first + COMMAND_WORDS]))
        reads.append(len(machine.readback) - before)
    if words == program.words and machine.data.faults == program.data_faults:
        if [memory.faults for memory in machine.weights] == program.weight_faults:
            assert results == program.results
            assert machine.readback == program.readback

    def errors(memory):
        responses = (RESP_SLVERR, RESP_DECERR) if resp is None else (resp, resp)
        return [(address, responses[n % 2]) for n, address in enumerate(sorted(memory.faults))]

    return {
        "words": words,
        "data": program.data.tobytes(),
        "weights": [memory.tobytes() for memory in program.weights],
        "data_faults": errors(machine.data),
        "weight_faults": [errors(memory) for memory in machine.weights],
        "results": [(result.tag, int(result.unit), int(result.status)) for result in results],
        "readback": [int(word) for word in machine.readback],
        "reads": reads,
        "requests": requests_of(program),
        "steps": [
            (step.first, batch_words(step.batch), [RESPONSES[each] for each in step.memory])
            for step in program.steps
        ],
    }


def requests_of(program: Program) -> list[tuple[list[int], int]]:
    """The words of each request of the host, and of its answer."""
    found, opened = [], 0
    for tag, (request, status) in enumerate(program.requests):
        words = request_words(
            request.op, tag=tag, sequence=request.sequence, layer=request.layer, kv=request.kv,
            token=request.token, thresholds=request.thresholds,
        )  # fmt: skip
        is_open = request.op == Op.OPEN
        sequence = opened if is_open else request.sequence
        opened += is_open
        found.append((words, answer_word(tag, int(status), sequence)))
    return found


def batch_words(batch) -> list[int]:
    """The words of BATCH for every place."""
    words: list[int] = []
    for n, place in enumerate(batch):
        if place is None:
            words += place_words(n)
            continue
        given = (place.sequence, place.position, place.token)
        words += place_words(n, *given, sampling=place.sampling)
    return words


def done(program: Program, opcode: Opcode) -> int:
    """Commands of ``opcode`` that give a result."""
    opcodes = [word & 0xFF for word in program.words[::COMMAND_WORDS]]
    return sum(
        each == opcode and not result.status & FAILED
        for each, result in zip(opcodes, program.results, strict=True)
    )


def programs(seed, number, commands, faults, least=2, config=SMALL, opcode=Opcode.MATMUL):
    """Random programs with at least so many results of ``opcode``: many have none."""
    drawn = (
        random_program(config.machine, seed=1000 * seed + n, commands=commands, faults=faults)
        for n in itertools.count()
    )
    return list(itertools.islice((p for p in drawn if done(p, opcode) >= least), number))


def with_bus_error(program: Program, port: int | None, resp: int, rng) -> dict | None:
    """A word that the program reads gives an error: of a weight port, or of the data memory.

    None: it reads none there.
    """
    machine = SMALL.machine
    places = []
    for first in range(0, len(program.words), COMMAND_WORDS):
        opcode, _, _, operands = decode(program.words[first : first + COMMAND_WORDS])
        if opcode == Opcode.LOAD and port is None and first:
            places.append(operands["address"] + int(rng.integers(operands["rows"])))
        elif opcode == Opcode.MATMUL and port is not None:
            whole = groups(operands["outputs"], machine.group_outputs) * machine.group_outputs
            words = weight_port_words(
                machine.array_beats(operands["length"], whole), machine.beat_words,
                machine.ports.ports, port,
            )  # fmt: skip
            word = int(rng.choice([0, words - 1, int(rng.integers(words))]))
            places.append(operands["weights"] + word)
    if not places:
        return None
    bad = {places[int(rng.integers(len(places)))]}
    made = as_vectors(
        program,
        data_faults=bad if port is None else set(),
        weight_faults=[bad if n == port else set() for n in range(machine.ports.ports)],
        resp=resp,
    )
    assert any(status & CommandStatus.BUS_ERROR for _, _, status in made["results"])
    return made


def with_garbage(program: Program, rng) -> dict:
    """Commands of random bits before it and among it, opcodes known and unknown."""
    words, base = [], [0] * len(Unit)

    def garbage():
        made = [int(word) for word in rng.integers(0, 1 << 32, COMMAND_WORDS)]
        if rng.random() < 0.6:
            made[0] = made[0] & ~0xFF | int(rng.choice(list(COMMANDS)))
        return made

    for first in range(0, len(program.words), COMMAND_WORDS):
        while rng.random() < (0.9 if first == 0 else 0.3):
            words += garbage()
            base = counted(words)
            ahead = counted(program.words[:first])
            base = [a - b for a, b in zip(base, ahead, strict=True)]
        words += rebase(program.words[first : first + COMMAND_WORDS], base)
    return as_vectors(program, words=words)


def failing_garbage(program: Program, rng, least: int = 6) -> dict:
    """``with_garbage`` until ``least`` commands fail: random bits may be a harmless command."""
    while True:
        made = with_garbage(program, rng)
        if sum(bool(status & FAILED) for _, _, status in made["results"]) >= least:
            return made


def run(seed, testcase, config=SMALL, target="asic", **params):
    def made(given):
        return as_vectors(given, config=config) if isinstance(given, Program) else given

    params = {name: [made(each) for each in pool] for name, pool in params.items()}
    params["follow"] = made(programs(seed + 500, 1, 14, False, least=1, config=config)[0])
    tb.simulate.run.run_model(
        model(config, target), "tb.kllm.tb_accelerator", config=config, params=params, seed=seed,
        testcase=testcase,
    )  # fmt: skip


def test_programs(seed):
    run(
        seed, "programs",
        faulty=programs(seed, 2, 40, True), clean=programs(seed + 100, 2, 40, False),
    )  # fmt: skip


@pytest.mark.telling("fixed12_half")
@pytest.mark.parametrize("machine", FIXED)
def test_programs_with_products_in_fixed_point(machine, seed):
    """Shown to fail: lanes of ``fixed16`` in a machine of ``rounded``; lanes of whole tables."""
    config = dataclasses.replace(SMALL, machine=FIXED[machine])
    run(
        seed, "programs", config,
        faulty=programs(seed + 600, 2, 40, True, config=config),
        clean=programs(seed + 700, 2, 40, False, config=config),
    )  # fmt: skip


@pytest.mark.telling("programs-fpga")
@pytest.mark.parametrize("target", ["asic", "fpga"])
@pytest.mark.parametrize("testcase", ["programs", "abort_at_random"])
def test_of_few_gates(testcase, target, seed):
    """Shown to fail: indices of another part of the row.

    An element per cycle, scales in four beats, clustering and outliers in turn.
    """
    config = BLOCKS["kllm_accelerator"].configs["narrow"]
    faulty, clean = (
        programs(seed + 1000 + 100 * faults, 2, 40, faults, config=config)
        for faults in (True, False)
    )
    run(seed, testcase, config, target, faulty=faulty, clean=clean)


def test_a_model_whose_host_attends(seed):
    """All words of a token of a small model, logits among them: of the second token.

    Its data memory has what the host wrote in that pass.
    """
    config = BLOCKS["kllm_accelerator"].configs["narrow"]
    program = hosted_program(config.machine, [7, 31])
    assert len(program.readback) > 100
    run(seed, "programs", config, "fpga", faulty=[program], clean=[program])


@pytest.mark.telling("programs")
@pytest.mark.parametrize("testcase", ["programs", "abort_at_random", "reset_at_random"])
def test_functions_side_by_side(testcase, seed):
    """Shown to fail: elements 0 and 1 of eight exchanged.

    Programs of many FUNCTIONs, with products or not.
    """
    faulty, clean = (
        programs(seed + 800 + 100 * faults, 2, 60, faults, 5, WIDE, Opcode.FUNCTION)
        for faults in (True, False)
    )
    run(seed, testcase, WIDE, faulty=faulty, clean=clean)


@pytest.mark.telling("programs", "abort_at_random")
@pytest.mark.parametrize("testcase", ["programs", "abort_at_random", "reset_at_random"])
def test_cache(testcase, seed):
    """Programs that append and attend, in batches; the pages' memory refuses some of them all."""
    faulty, clean = (
        programs(seed + 900 + 100 * faults, 2, 60, faults, 2, CACHED, Opcode.ATTEND)
        for faults in (True, False)
    )
    run(seed, testcase, CACHED, faulty=faulty, clean=clean)


@pytest.mark.telling("programs", "abort_at_random")
@pytest.mark.parametrize("testcase", ["programs", "abort_at_random", "reset_at_random"])
def test_experts(testcase, seed):
    """Choices of TOP_K that LOAD_AT and WEIGHT_BASE follow, with and without packets by row."""
    for config, first in ((EXPERTS, 1300), (EXPERTS_BY_ROW, 1500)):
        faulty, clean = (
            programs(seed + first + 100 * faults, 4, 90, faults, 2, config, Opcode.WEIGHT_BASE)
            for faults in (True, False)
        )
        run(seed, testcase, config, faulty=faulty, clean=clean)


@pytest.mark.telling("programs", "abort_at_random")
@pytest.mark.parametrize("testcase", ["programs", "abort_at_random", "reset_at_random"])
def test_engines(testcase, seed):
    """The same with two engines; the memory of one of them may refuse all, or that of both."""
    first = seed + 1300
    faulty = next(
        found for found in (
            programs(first + 100 * n, 2, 60, True, 2, TWO, Opcode.ATTEND) for n in range(1, 30)
        )
        if any(len(set(step.memory)) > 1 for program in found for step in program.steps)
    )  # fmt: skip
    clean = programs(first, 2, 60, False, 2, TWO, Opcode.ATTEND)
    run(seed, testcase, TWO, faulty=faulty, clean=clean)


def as_fetched(program: Program, checks: bool) -> dict:
    """The program as images in the data memory, one for each batch, and what its runs give."""
    made, config = as_vectors(program, config=CACHED), CACHED.machine
    machine = Machine(config, program.data, program.weights)
    assert machine.cache is not None
    for request, _ in program.requests:
        machine.cache.request(request)
    for memory, faults in zip(machine.weights, program.weight_faults, strict=True):
        memory.faults = set(faults)
    ends = [step.first for step in program.steps[1:]] + [len(program.results)]
    data, images = [program.data], []
    for step, end in zip(program.steps, ends, strict=True):
        before = counted(program.words[: COMMAND_WORDS * step.first], config.units)
        words = program.words[COMMAND_WORDS * step.first : COMMAND_WORDS * end]
        if not words:
            continue
        image = program_image(rebase(words, [-count for count in before]), config)
        row = sum(map(len, data)) // ROW_BYTES
        data.append(np.frombuffer(image, np.uint8))
        images.append((step, words, row | RUN_CHECKS * checks))
    machine.data.data = np.concatenate(data)
    machine.data.faults = set(program.data_faults)
    parts = []
    for step, words, word in images:
        machine.cache.batch, machine.cache.memory = list(step.batch), list(step.memory)
        answer = run_program(machine, word)
        parts.append(
            {
                "run": word, "words": words, "answer": answer.word,
                "readback": list(machine.readback), "batch": batch_words(step.batch),
                "response": [RESPONSES[each] for each in step.memory],
            }
        )  # fmt: skip
    return made | {"data": machine.data.data.tobytes(), "parts": parts}


@pytest.mark.telling("runs_from_memory", "abort_of_a_fetched_program")
@pytest.mark.parametrize("testcase", ["runs_from_memory", "abort_of_a_fetched_program"])
def test_fetched(testcase, seed):
    """Programs from the data memory: each word read back, and one word for all statuses."""
    pool = [
        *programs(seed + 1100, 2, 50, True, 2, CACHED, Opcode.ATTEND),
        *programs(seed + 1200, 1, 50, False, 2, CACHED, Opcode.ATTEND),
    ]
    run(seed, testcase, CACHED, fetched=[as_fetched(each, n == 1) for n, each in enumerate(pool)])


def full_program(seed: int, config: MachineConfig) -> Program:
    """APPENDs until no page is free, and beyond the longest sequence; ATTENDs all the while.

    Sequence 0 is full early; the others go on until the pages are.
    """
    rng = np.random.default_rng([seed, 61])
    cache, size = config.cache, row_count(config.cache.kv.elements)
    rows = config.batch * row_count(config.queries * cache.kv.elements)
    data = rng.normal(0, 1, (rows, ROW_ELEMENTS)).astype("<f2").view(np.uint8).reshape(-1)
    weights = [np.zeros(config.ports.bits // 8, np.uint8) for _ in range(config.ports.ports)]
    machine, assembler = Machine(config, data, weights), Assembler(config)
    requests, steps, results = [], [], []
    memory = (Status.OK,) * config.engines
    for layer in range(cache.layers):
        for kv in Kv:
            words = np.array([-2, -0.1, 0.1, 2]).astype(np.float16).view(np.uint16).tolist()
            requests.append(Request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=words))
    requests += [Request(Op.OPEN)] * cache.sequences
    answered = [(each, machine.cache.request(each).status) for each in requests]

    def command(opcode, operands):
        assembler.emit(opcode, operands)
        results.append(machine.step(assembler.parts[-1][-COMMAND_WORDS:]))

    command(Opcode.LOAD, {"address": 0, "rows": rows, "dst": 0})
    heads = cache.kv.heads * config.queries
    for position in range(cache.max_tokens + 1):
        batch = [Place(sequence, position) for sequence in range(config.batch)]
        machine.cache.batch = list(batch)
        steps.append(Step(len(results) if position else 0, tuple(batch), memory))
        for layer in range(cache.layers):
            one = {"tokens": config.batch, "layer": layer}
            for kv in Kv:
                command(Opcode.APPEND, {"src": 0, "stride": size, "kv": int(kv)} | one)
        attended = row_count(heads * cache.kv.head_dim)
        places = {"src": 0, "stride": attended, "dst": rows, "dst_stride": attended}
        command(Opcode.ATTEND, places | {"heads": heads, "tokens": config.batch, "layer": 0})
        command(Opcode.READ, {"src": rows, "rows": rows})
    assert any(each.status & CommandStatus.CAPACITY for each in results)
    assert not any(engine.free_pages for engine in machine.cache.engines)
    return Program(
        words=assembler.words(), data=data, weights=weights, data_faults=set(),
        weight_faults=[set() for _ in weights], results=results, readback=machine.readback,
        vector=machine.vector, requests=tuple(answered), steps=tuple(steps),
    )  # fmt: skip


@pytest.mark.telling("one")
@pytest.mark.parametrize("config", [CACHED, TWO], ids=["one", "two"])
def test_full_pages(config, seed):
    """No page is free: CAPACITY of the tokens that need one, and the others go on.

    The next program frees all, and finds the cache as new.
    """
    clean = programs(seed + 970, 1, 40, False, 2, config, Opcode.ATTEND)
    faulty = [full_program(seed, config.machine)]
    run(seed, "programs", config, faulty=faulty, clean=clean)


class ForkedProgram:
    """A program whose host sends requests between its batches; golden runs along.

    Vectors lie in rows of their own for each position and place. So a sequence that is alone has
    the same vectors at the same place.
    """

    rows, queries, made = 224, 190, 232  # loaded; first of the queries, and of what comes of them

    def __init__(self, config: MachineConfig, seed: int) -> None:
        rng = np.random.default_rng([seed, 62])
        data = rng.normal(0, 1, (self.rows, ROW_ELEMENTS)).astype("<f2")
        self.config, self.data = config, data.view(np.uint8).reshape(-1)
        self.weights = [np.zeros(config.ports.bits // 8, np.uint8)] * config.ports.ports
        self.machine, self.asm = Machine(config, self.data, self.weights), Assembler(config)
        assert self.machine.cache is not None
        self.cache, self.parts = self.machine.cache, []

    def part(self, batch=(), memory: Status = Status.OK, failed: int = 0) -> None:
        """Begins a part; memory: what that of engine ``failed`` does."""
        batch = [*batch, *[None] * (self.config.batch - len(batch))]
        self.cache.batch = batch
        self.cache.memory = [Status.OK] * self.config.engines
        self.cache.memory[failed] = memory
        response = [RESPONSES[each] for each in self.cache.memory]
        self.parts.append(
            {"batch": batch_words(batch), "response": response, "requests": [], "words": [],
             "results": [], "readback": []}
        )  # fmt: skip

    def request(self, op: Op, **fields) -> tuple[Status, int]:
        answer = self.cache.request(Request(op, **fields))
        tag = 40 + len(self.parts[-1]["requests"])
        words = request_words(op, tag=tag, **fields)
        self.parts[-1]["requests"].append(
            (words, answer_word(tag, int(answer.status), answer.sequence))
        )
        return answer.status, answer.sequence

    def command(self, opcode: Opcode, operands: dict[str, int]) -> None:
        before = len(self.machine.readback)
        self.asm.emit(opcode, operands)
        words = [int(word) for word in self.asm.parts[-1][-COMMAND_WORDS:]]
        result = self.machine.step(words)
        assert not result.status & FAILED, result
        part = self.parts[-1]
        part["words"] += words
        part["results"].append((result.tag, int(result.unit), int(result.status)))
        part["readback"] += map(int, self.machine.readback[before:])

    def step(self, batch, row: int, appends: bool = True) -> list[list[int]]:
        """Appends to all layers, and attends in the last; the words of each place."""
        self.part(batch)
        tokens, cache = self.config.batch, self.config.cache
        size, heads = row_count(cache.kv.elements), cache.kv.heads * self.config.queries
        if row == 0:
            self.command(Opcode.LOAD, {"address": 0, "rows": self.rows, "dst": 0})
        for layer in range(cache.layers if appends else 0):
            for kv in Kv:
                src = size * row + layer + 2 * kv
                of = {"src": src, "stride": size, "tokens": tokens, "layer": layer, "kv": int(kv)}
                self.command(Opcode.APPEND, of)
        wide = row_count(heads * cache.kv.head_dim)
        self.command(
            Opcode.ATTEND,
            {"src": self.queries + row % 9, "stride": wide, "dst": self.made, "dst_stride": wide,
             "heads": heads, "tokens": tokens, "layer": cache.layers - 1},
        )  # fmt: skip
        self.command(Opcode.READ, {"src": self.made, "rows": wide * tokens})
        rows = self.machine.vector[self.made : self.made + wide * tokens]
        return rows.reshape(tokens, -1).tolist()


def fork_program(config: MachineConfig, seed: int) -> dict:
    """A prompt and two children go on, each as alone; the prompt ends before them.

    Two FORKs fail before: of an engine's memory, and of a token that is missing.
    """
    made, prompt, parent = ForkedProgram(config, seed), 7, 0
    made.part()
    words = np.array([-2, -0.1, 0.1, 2]).astype(np.float16).view(np.uint16).tolist()
    for layer in range(config.cache.layers):
        for kv in Kv:
            made.request(Op.THRESHOLDS, layer=layer, kv=int(kv), thresholds=words)
    assert made.request(Op.OPEN) == (Status.OK, parent)

    def prompted(sequence: int) -> None:
        for first in range(0, prompt, config.batch):
            places = range(first, min(first + config.batch, prompt))
            made.step([Place(sequence, position) for position in places], first)

    prompted(parent)
    for failed in range(config.engines):
        made.part(memory=Status.SLAVE_ERROR, failed=failed)
        status = made.request(Op.FORK, sequence=parent, token=prompt)
        assert status == (Status.SLAVE_ERROR, parent)
    made.part()
    assert made.request(Op.FORK, sequence=parent, token=prompt + 1)[0] == Status.BEYOND_LENGTH
    children = [made.request(Op.FORK, sequence=parent, token=prompt)[1] for _ in range(2)]
    assert children == [1, 2]
    assert made.request(Op.FORK, sequence=parent, token=prompt)[0] == Status.TABLE_FULL
    everyone, after = [parent, *children], []
    for position in range(prompt, prompt + 5):
        row = 9 + 3 * (position - prompt)
        after.append((position, row, made.step([Place(s, position) for s in everyone], row)))
    made.part()
    assert made.request(Op.FREE, sequence=parent)[0] == Status.OK
    position, row, found = after[-1]
    again = made.step([None, *[Place(s, position) for s in children]], row, appends=False)
    assert again[1:] == found[1:]
    for place, sequence in enumerate(everyone):
        if sequence != parent:
            made.part()
            assert made.request(Op.FREE, sequence=sequence)[0] == Status.OK
        made.part()
        assert made.request(Op.OPEN) == (Status.OK, parent)
        prompted(parent)
        for position, row, found in after:
            batch = [Place(parent, position) if n == place else None for n in range(3)]
            assert made.step(batch, row)[place] == found[place]
        made.part()
        assert made.request(Op.FREE, sequence=parent)[0] == Status.OK
    assert all(engine.free_pages == config.cache.pages for engine in made.cache.engines)
    return {
        "data": made.data.tobytes(), "weights": [each.tobytes() for each in made.weights],
        "data_faults": [], "weight_faults": [[] for _ in made.weights], "parts": made.parts,
    }  # fmt: skip


@pytest.mark.telling("two")
@pytest.mark.parametrize("engines", [1, 2], ids=["one", "two"])
def test_forks(engines, seed):
    """Sequences share pages: one prompt, and children that go on, each as alone.

    Shown to fail: those of docs/decisions/0338-prefixes-are-shared.md.
    """
    config = dataclasses.replace(
        FORKED, machine=dataclasses.replace(FORKED.machine, engines=engines)
    )
    tb.simulate.run.run_model(
        model(config), "tb.kllm.tb_accelerator", config=config, seed=seed, testcase="forks",
        params={"forked": [fork_program(config.machine, seed)]},
    )  # fmt: skip


@pytest.mark.telling("programs", "abort_at_random")
@pytest.mark.parametrize(
    "testcase", ["programs", "ports_of_different_latency", "abort_at_random", "reset_at_random"]
)
def test_rows_ahead(testcase, seed):
    """Commands that begin with the rows that they wait for, packets in rows, and two banks."""
    faulty, clean = (
        programs(seed + 1000 + 100 * faults, 2, 60, faults, 2, ROWS, Opcode.ATTEND)
        for faults in (True, False)
    )
    run(seed, testcase, ROWS, faulty=faulty, clean=clean)


def after_product(seed: int, emit) -> dict:
    """Params: a vector quantized and multiplied on ROWS, then what ``emit(asm, x, y, made)`` adds.

    made: the products; x and y are loaded.
    """
    machine, rng = ROWS.machine, np.random.default_rng([seed, 51])
    asm, length = Assembler(machine), 256
    data = rng.integers(0x2400, 0x3C00, (64, 16)) | rng.integers(0, 2, (64, 16)) << 15
    data[:2] = np.sort(rng.uniform(-1, 1, (2, 16)).astype(np.float16)).view(np.uint16)
    book, packet = asm.vector(32), asm.vector(machine.kmeans_words)
    x, y, made = (asm.vector(length) for _ in range(3))
    for address, vector in ((0, book), (2, packet), (20, x), (40, y)):
        asm.load(address=address, dst=vector)
    asm.activation_codebook(src=book)
    asm.lane_codebook(src=packet)
    slot = asm.slots()
    asm.quantize(src=x, slot=slot)
    asm.matmul(weights=0, dst=made, length=length, slot=slot)
    emit(asm, x, y, made)
    words = asm.words()
    # Any indices, and scales of moderate size.
    scales = [rng.integers(0x2400, 0x3000, 1 << 13) for _ in range(machine.ports.ports)]
    memories = [each.astype("<u2").tobytes() for each in scales]
    golden = Machine(machine, np.frombuffer(data.astype("<u2").tobytes(), np.uint8).copy(),
                     [np.frombuffer(each, np.uint8).copy() for each in memories])  # fmt: skip
    results = golden.run(words)
    assert not any(result.status & FAILED for result in results)
    return {
        "words": [int(word) for word in words], "data": data.astype("<u2").tobytes(),
        "weights": memories,
        "results": [(result.tag, int(result.unit), int(result.status)) for result in results],
        "readback": [int(word) for word in golden.readback],
    }  # fmt: skip


def test_rows_ahead_at_full_rate(seed):
    """QUANTIZE, MATMUL, BINARY of its last rows; BINARY of other rows, QUANTIZE of its results.

    Shown to fail:

    - a dispatcher in which no command leans;
    - a front that tells rows by commands;
    - no ``come`` of the supply;
    - no ``certain`` of MATMUL, or of FUNCTION.
    """
    length = 256

    def emit(asm, x, y, made):
        sums, second = asm.vector(length), asm.slots()
        # Few rows: it waits for them, and not for its own first ones.
        at = length - 64
        asm.binary(op=Binary.ADD, a=made.part(at, 64), b=y.part(at, 64), dst=sums.part(at, 64))
        asm.binary(op=Binary.ADD, a=x, b=y, dst=made)
        asm.quantize(src=made, slot=second)
        asm.read(src=made)
        asm.read_slot(slot=second)

    rows = length // 16
    unit = FunctionCycles(ROWS.width, ROWS.machine.bits_a, 2, 2, ROWS.functions)
    quantizer = ROWS.quantizer_config.cycles
    quantize = quantizer.quantize(
        rows=rows, tokens=1, outliers=0, crowded=0, full=0, pops=0, norm=0
    )
    group = ROWS.machine.group_outputs // 16
    params = after_product(seed, emit) | {
        # From the status of MATMUL to that of BINARY, and from that of BINARY to that of QUANTIZE.
        "sums": unit.rows(group) - unit.refused, "quantize": quantize - rows,
        "apart": (unit.rows(4), quantize),
    }  # fmt: skip
    tb.simulate.run.run_model(
        model(ROWS), "tb.kllm.tb_accelerator", config=ROWS, seed=seed,
        testcase="rows_ahead_at_full_rate", params=params,
    )  # fmt: skip


def test_results_over_rows_ahead(seed):
    """BINARY writes over the last products, of which it reads none: it waits for each of them.

    Shown to fail: results of the functional unit that pass no guard.
    """
    last = ROWS.machine.group_outputs

    def emit(asm, x, y, made):
        at = made.length - last
        asm.binary(op=Binary.ADD, a=x.part(at, last), b=y.part(at, last), dst=made.part(at, last))
        asm.read(src=made)

    tb.simulate.run.run_model(
        model(ROWS), "tb.kllm.tb_accelerator", config=ROWS, seed=seed,
        testcase="results_over_rows_ahead", params=after_product(seed, emit),
    )  # fmt: skip


def one_by_one(seed: int) -> dict:
    """Params: a program of each unit, whose commands wait for all before them."""
    machine, rng = CACHED.machine, np.random.default_rng([seed, 52])
    asm, length = Assembler(machine), 128
    data = rng.integers(0x2400, 0x3C00, (64, 16)) | rng.integers(0, 2, (64, 16)) << 15
    data[:2] = np.sort(rng.uniform(-1, 1, (2, 16)).astype(np.float16)).view(np.uint16)
    book, packet = asm.vector(32), asm.vector(machine.kmeans_words)
    x, made, cached = asm.vector(length), asm.vector(length), asm.vector(64, machine.batch)
    queries, attended = (asm.vector(128, machine.batch) for _ in range(2))
    for address, vector in ((0, book), (2, packet), (20, x)):
        asm.load(address=address, dst=vector)
    slot = asm.slots()
    asm.activation_codebook(src=book)
    asm.lane_codebook(src=packet)
    asm.quantize(src=x, slot=slot)
    asm.matmul(weights=0, dst=made, length=length, slot=slot)
    asm.function(function=Function.EXP, src=made, dst=made)
    asm.append(src=cached, layer=0, kv=Kv.K)
    asm.read(src=made)
    asm.attend(src=queries, dst=attended, layer=0, heads=4)
    asm.binary(op=Binary.ADD, a=x, b=made, dst=made)
    asm.matmul(weights=0, dst=made, length=length, slot=slot)
    asm.read_slot(slot=slot)
    words = [int(word) for word in asm.words()]
    for first in range(0, len(words), COMMAND_WORDS):
        one = words[first : first + COMMAND_WORDS]
        opcode, tag, _, operands = decode(one)
        before = dict(zip(Unit, counted(words[:first], machine.units), strict=True))
        words[first : first + COMMAND_WORDS] = map(int, encode(opcode, tag, before, operands))
    scales = [rng.integers(0x2400, 0x3000, 1 << 13) for _ in range(machine.ports.ports)]
    memories = [each.astype("<u2").tobytes() for each in scales]
    golden = Machine(machine, np.frombuffer(data.astype("<u2").tobytes(), np.uint8).copy(),
                     [np.frombuffer(each, np.uint8).copy() for each in memories])  # fmt: skip
    results = golden.run(words)
    assert not any(result.status & FAILED for result in results)
    assert {result.unit for result in results} == set(Unit)
    return {
        "words": words, "data": data.astype("<u2").tobytes(), "weights": memories,
        "results": [(result.tag, int(result.unit), int(result.status)) for result in results],
        "readback": [int(word) for word in golden.readback],
    }  # fmt: skip


def test_units_are_counted(seed):
    """Cycles of each unit by the registers, and by the times of the statuses.

    Shown to fail:

    - each unit counted as the next one, or registers in reverse;
    - MATMUL at work from its early start on, or only once its release was taken.
    """
    tb.simulate.run.run_model(
        model(CACHED), "tb.kllm.tb_accelerator", config=CACHED, seed=seed,
        testcase="units_are_counted", params=one_by_one(seed),
    )  # fmt: skip


def test_functions_at_full_rate(seed):
    """One LOAD, then FUNCTIONs of most of the vector memory, each function twice.

    Shown to fail: cycles of 4 side by side.
    """
    rows = WIDE.machine.vectors.rows - 8
    functions = WIDE.machine.extra.functions * 2
    given = [(Opcode.LOAD, {"address": 0, "dst": 0, "rows": rows})]
    given += [
        (Opcode.FUNCTION, {"function": f, "src": 0, "dst": 0, "length": 16 * rows - 5})
        for f in functions
    ]
    words = [
        word
        for tag, (opcode, operands) in enumerate(given)
        for word in encode(opcode, tag, {Unit.LOAD: 1} if tag else {}, operands)
    ]
    stages = KllmFunctionPipelineConfig().stages
    cycles = FunctionCycles(WIDE.width, WIDE.machine.bits_a, stages, 2, WIDE.functions)
    apart = [cycles.function(rows, f.name) for f in functions]
    rng = np.random.default_rng(seed)
    tb.simulate.run.run_model(
        model(WIDE), "tb.kllm.tb_accelerator", config=WIDE, seed=seed,
        testcase="functions_at_full_rate",
        params={"words": [int(w) for w in words], "data": rng.bytes(32 * rows), "apart": apart},
    )  # fmt: skip


def test_ports_of_different_latency(seed):
    run(
        seed, "ports_of_different_latency",
        faulty=programs(seed + 200, 2, 40, True), clean=programs(seed + 300, 2, 40, False),
    )  # fmt: skip


def test_slow_host(seed):
    run(
        seed, "slow_host",
        clean=programs(seed + 1, 1, 20, False), long=programs(seed + 2, 1, 150, True),
    )  # fmt: skip


def test_abort(seed):
    run(
        seed, "abort_at_random",
        faulty=programs(seed + 3, 2, 40, True), clean=programs(seed + 4, 2, 40, False),
    )  # fmt: skip


def test_reset(seed):
    run(
        seed, "reset_at_random",
        faulty=programs(seed + 5, 2, 40, True), clean=programs(seed + 6, 2, 40, False),
    )  # fmt: skip


def test_bus_errors(seed):
    rng = np.random.default_rng(seed)
    errors = []

    def one(seed):
        return programs(seed, 1, 30, False, least=1)[0]

    for port in (None, *range(SMALL.machine.ports.ports)):
        for resp in (RESP_SLVERR, RESP_DECERR):
            pool = (one(seed + 7 + 8 * n + len(errors)) for n in range(20))
            made = (with_bus_error(program, port, resp, rng) for program in pool)
            errors.append(next(found for found in made if found is not None))
    run(seed, "bus_errors", errors=errors)


def test_a_hang_is_found(seed):
    run(seed, "a_hang_is_found")


def test_timing(seed):
    """20 LOADs of one row: fewer than there are places for statuses."""
    rng = np.random.default_rng(seed)
    loads = [
        encode(Opcode.LOAD, n, {}, {"address": int(rng.integers(100)), "dst": n % 16, "rows": 1})
        for n in range(20)
    ]
    run(seed, "loads_at_full_rate", loads=[int(word) for words in loads for word in words])


def test_malformed(seed):
    rng = np.random.default_rng(seed)
    garbage = [failing_garbage(program, rng) for program in programs(seed + 20, 2, 20, False)]
    run(seed, "malformed_streams", garbage=garbage)


def test_programs_follow_each_other_in_golden(seed):
    """A program without faults does not see what was before it; the bench relies on this."""
    first, second = programs(seed, 1, 30, True)[0], programs(seed, 1, 30, False)[0]
    machine = Machine(SMALL.machine, first.data, first.weights)
    machine.run(first.words)
    assert [machine.issued[unit] for unit in Unit] == counted(first.words)
    machine.data.data, machine.data.faults = second.data, set()
    for memory, image in zip(machine.weights, second.weights, strict=True):
        memory.data, memory.faults = image, set()
    assert machine.run(rebase(second.words, counted(first.words))) == second.results
    assert machine.readback == second.readback


def machine(**fields) -> dict:
    return {"machine": MachineConfig(**fields)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"address_bits": 39}, "address_bits must be at least 40 for ports of 1024 bits, not 39"),
        (machine(vectors=VectorShape(rows=15)), "machine.vectors.rows must be 16..65536, not 15"),
        (machine(slot=SlotShape(slots=65)), "machine.slot.slots must be 2..64, not 65"),
        (machine(replay_beats=3), "machine.replay_beats must be 4..16383, not 3"),
        (
            machine(ports=PortShape(ports=1, bits=32)),
            "machine.ports must be more or wider at these",
        ),
        (machine(batch=1), "machine.queries must be 1..8, not 0"),
        (machine(batch=1, queries=1), "engine.mmu.cache.kv.order must be token, not 'head'"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmAcceleratorConfig(**wrong)
    assert message in str(error.value)
