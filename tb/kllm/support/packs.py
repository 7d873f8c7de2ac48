"""Layers as tb_layer takes them. Before the simulation."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import torch

from golden.fp16.ops import bits_from_float
from golden.kllm.assembler import Assembler
from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig
from golden.kllm.engines import answer_word, place_words, request_words
from golden.kllm.isa import ROW_BYTES, ROW_ELEMENTS, Opcode, row_count
from golden.kllm.layer.compiler import CompiledLayer
from golden.kllm.layer.host import memories
from golden.kllm.machine import Machine
from golden.llm.pack import Pack
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op
from tb.kllm.support.rebase import counted, rebase


def _state_program(config: MachineConfig, base: list[int]) -> list[int]:
    """READ of all rows and READ_SLOT of all slots, after ``base[unit]`` commands of each unit."""
    assembler = Assembler(config)
    assembler.read(src=0, rows=config.vector_rows)
    for slot in range(config.slots):
        assembler.read_slot(slot=slot)
    return rebase(assembler.words(), base)


def _final_state(pack: Pack, config: MachineConfig) -> dict:
    """Rows to begin with, and what the state is afterwards: program, words read back, results.

    All rows begin with random words. So a row that no command writes must keep them.
    """
    machine = Machine(config, pack.data, pack.ports)
    rows = _random_rows(machine)
    for number, words in enumerate(pack.programs):
        if number:
            for memory, appended in zip(
                (machine.data, *machine.weights),
                (pack.append_data, *pack.append_ports),
                strict=True,
            ):
                for address, word in appended:
                    raw = word.to_bytes(memory.word_bytes, "little")
                    memory.write(address, np.frombuffer(raw, dtype=np.uint8))
        status = [result.word for result in machine.run(words)]
        assert (status, machine.readback) == (pack.status[number], pack.readback[number])
    return _state(machine, rows, counted(list(itertools.chain(*pack.programs))))


def _random_rows(machine: Machine) -> np.ndarray:
    """Random words in all rows of the vector memory."""
    shape = machine.config.vector_rows, ROW_ELEMENTS
    rows = np.random.default_rng(1).integers(0, 1 << 16, shape)
    machine.vector[:] = torch.from_numpy(rows)
    return rows


def _state(machine: Machine, rows: np.ndarray, base: list[int]) -> dict:
    """The same as ``_final_state``, of a machine that began with ``rows``."""
    program = _state_program(machine.config, base)
    results = _results(machine.run(program))
    fill = Assembler(machine.config)
    fill.load(address=0, dst=0, rows=machine.config.vector_rows)
    return {
        "rows": rows.astype("<u2").tobytes(),
        "fill": fill.words(),
        "words": program,
        "readback": machine.readback,
        "results": results,
    }


def _results(results) -> list[tuple[int, int, int]]:
    return [(each.tag, int(each.unit), int(each.status)) for each in results]


@dataclasses.dataclass(frozen=True)
class History:
    """Real K and V (tokens, kv_heads * head_dim) of a sequence before the layer's new tokens."""

    k: torch.Tensor
    v: torch.Tensor


class Paged:
    """A layer on a machine with a cache, part by part: histories first, then the new tokens.

    sequences: the history of each; layer 0 of the cache is the layer's.
    """

    def __init__(
        self, compiled: CompiledLayer, x, cos, sin, sequences: Sequence[History]
    ) -> None:
        self.config = compiled.config
        data, weights = memories(compiled, x, cos, sin)
        self.first = len(data) // ROW_BYTES
        vectors = [
            bits_from_float(real.double()) for each in sequences for real in (each.k, each.v)
        ]
        stored = torch.cat(vectors).numpy().astype("<u2")
        data = np.concatenate((data, stored.view(np.uint8).reshape(-1)))
        self.machine = Machine(self.config, data, weights)
        self.rows = _random_rows(self.machine)
        self.data, self.weights = data, weights
        self.parts: list[dict] = []
        self.requests: list[tuple[list[int], int]] = []
        thresholds = compiled.quantized.thresholds
        assert thresholds is not None
        for kv in Kv:
            self._request(Op.THRESHOLDS, kv=kv, thresholds=thresholds[kv].tolist())
        for _ in sequences:
            self._request(Op.OPEN)
        size = row_count(self.config.cache.kv.elements)
        at = self.first
        for sequence, each in enumerate(sequences):
            count = len(each.k)
            self._history(sequence, count, (at, at + count * size), size)
            at += 2 * count * size

    def _request(self, op: Op, **fields) -> None:
        assert self.machine.cache is not None
        answer = self.machine.cache.request(Request(op, **fields))
        assert not answer.status
        tag = len(self.requests)
        words = request_words(op, tag=tag, **fields)
        self.requests.append((words, answer_word(tag, 0, answer.sequence)))

    def _history(self, sequence: int, count: int, first: tuple[int, int], size: int) -> None:
        """APPENDs of as many tokens as a batch has."""
        for token in range(0, count, self.config.batch):
            tokens = min(self.config.batch, count - token)
            program = Assembler(self.config)
            for kv in Kv:
                program.load(address=first[kv] + token * size, rows=tokens * size, dst=0)
                operands = {"src": 0, "stride": size, "tokens": tokens, "layer": 0, "kv": int(kv)}
                program.emit(Opcode.APPEND, operands)
            batch = [Place(sequence, token + n) for n in range(tokens)]
            self.part(program.words(), batch)

    def part(self, words: list[int], batch: Sequence[Place | None]) -> None:
        """Runs a part on the golden machine, after the parts before it."""
        machine, places = self.machine, self.config.batch
        assert machine.cache is not None
        batch = [*batch, *[None] * (places - len(batch))]
        machine.cache.batch = list(batch)
        words = rebase(words, [machine.issued[unit] for unit in machine.issued])
        results = machine.run(words)
        given = [
            word
            for n, place in enumerate(batch)
            for word in place_words(n, *(() if place is None else (place.sequence, place.position)))
        ]
        self.parts.append(
            {
                "words": words, "readback": machine.readback, "results": _results(results),
                "append": [[] for _ in range(1 + len(self.weights))], "batch": given,
            }
        )  # fmt: skip

    def parameters(self, latency: int) -> dict:
        """The parts as tb_layer takes them, and the final state."""
        base = [self.machine.issued[unit] for unit in self.machine.issued]
        return {
            "data": self.data.tobytes(), "ports": [port.tobytes() for port in self.weights],
            "parts": self.parts, "requests": self.requests,
            "state": _state(self.machine, self.rows, base), "latency": latency,
        }  # fmt: skip


def parameters(pack: Pack, config: MachineConfig, latency: int) -> dict:
    """A pack as tb_layer takes it: no golden types cross into the simulator."""
    nothing: list = [[] for _ in range(1 + len(pack.ports))]
    appended = [pack.append_data, *pack.append_ports]
    parts = [
        {
            "words": words,
            "readback": readback,
            "results": [(word >> 16, word >> 13 & 7, word & 0x1FFF) for word in status],
            "append": append,
        }
        for words, readback, status, append in zip(
            pack.programs, pack.readback, pack.status, (nothing, appended), strict=True
        )
    ]
    return {
        "data": pack.data.tobytes(),
        "ports": [port.tobytes() for port in pack.ports],
        "parts": parts,
        "state": _final_state(pack, config),
        "latency": latency,
    }
