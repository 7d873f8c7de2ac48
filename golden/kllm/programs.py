"""Random programs for testbenches, with the memories they run on and the golden results.

Every program is deterministic in hardware. The waits come from the hazards, no command reads what
was not written, and no command's rows overlap in a forbidden way. Operands are drawn from few rows
and slots, so that almost every command depends on others.
"""

import copy
import dataclasses

import numpy as np
import torch

from golden.attention.format import cap_operand
from golden.index.nearest import midpoints
from golden.kllm.assembler import Assembler, accesses, overlap
from golden.kllm.cache import Place
from golden.kllm.config import MachineConfig
from golden.kllm.engines import Sampling
from golden.kllm.image import weight_image
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    FAILED,
    ROW_ELEMENTS,
    Codebook,
    CommandStatus,
    Index,
    MatmulMode,
    Norm,
    Opcode,
    OutlierMode,
    Scalar,
    Unit,
    row_count,
)
from golden.kllm.machine import Machine, Result
from golden.kllm.vectors.requests import codebook_packet, integer_packet
from golden.oaken.kv_engine import Request
from golden.paging.format import Kv, Op, Status

Bytes = np.ndarray
_ENTRIES = 40  # of a table of LOAD_AT
_EARLY = CommandStatus.MALFORMED | CommandStatus.DEPENDENCY | CommandStatus.RANGE


@dataclasses.dataclass(frozen=True)
class Step:
    """Commands from number ``first`` on have this batch.

    The host writes it when all commands before it are complete. memory: of each engine of the
    cache, what its pages' memory does.
    """

    first: int
    batch: tuple[Place | None, ...]
    memory: tuple[Status, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """words: the commands; data, weights: the memories; *_faults: word addresses that give errors.

    results, readback, vector, slots: what ``Machine.run`` gives and leaves.
    requests: those of the host before the first command, each with its status on a machine without
    a sequence; steps: the batches. Both are empty on a machine without a cache.
    """

    words: list[int]
    data: Bytes
    weights: list[Bytes]
    data_faults: set[int]
    weight_faults: list[set[int]]
    results: list[Result]
    readback: list[int]
    vector: torch.Tensor
    requests: tuple[tuple[Request, Status], ...] = ()
    steps: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Matmul:
    length: int
    outputs: int
    address: int


def _moderate(rng: np.random.Generator, shape) -> np.ndarray:
    """FP16 words of magnitude 2**-6 .. 2**2."""
    return rng.integers(0, 2, shape) << 15 | rng.integers(0x2400, 0x4400, shape)


class _Maker:
    """Draws commands and keeps those that are allowed, running them on a machine as it goes."""

    def __init__(self, config: MachineConfig, rng: np.random.Generator, faults: bool):
        self.config, self.rng, self.faults = config, rng, faults
        kinds = ("activation", "kmeans", "integer", "base")
        self.constants: dict[str, list[int]] = {kind: [] for kind in kinds}
        constant_rows = self._constants()
        self.first = len(constant_rows)  # rows of the vector memory with values, from here
        # An ATTEND needs queries and outputs of a whole batch.
        self.rows = min(config.vector_rows, self.first + (96 if config.batch else 48))
        if self.rows - self.first < 16:
            raise ValueError(f"vector_rows must be {self.first + 16} or more for random programs")
        spare = 3 * (self.rows - self.first)  # rows of values in data memory
        values = self._values(spare)
        data = np.concatenate((constant_rows, values)).astype("<u2")
        self.images, weights = self._weights()
        self.machine = Machine(config, data.view(np.uint8).reshape(-1), weights)
        if faults:
            self.machine.data.faults.add(len(data) - 1)
            self.machine.data.faults.add(len(data) - 9)
        self.data_rows = len(data)
        self.assembler = Assembler(config)
        self.results: list[Result] = []
        self.readback: list[int] = []
        self.requests: list[tuple[Request, Status]] = []
        self.steps: list[Step] = []
        self.layer = 0  # of which the batch has the next positions
        # Commands that the batch is for: K or V, the first place, tokens.
        self.due: list[tuple[Opcode, int, int, int]] = []
        if config.batch:
            self._open()
            self.rebatch()
        self._emit(Opcode.LOAD, {"address": 0, "rows": self.rows, "dst": 0})
        if config.batch:  # what was best in a program before this one does not count
            every = {"src": self.first, "stride": 1, "tokens": config.batch, "length": 1}
            every |= {"first": 0, "place": 0, "begin": 1, "end": 0}
            self._emit(Opcode.TOP_K, every)
            if config.experts:  # and neither do its choices and its base
                self._emit(Opcode.TOP_K, every | {"end": 1, "route": config.experts})
                self._emit(Opcode.WEIGHT_BASE, {"src": self.constants["base"][0]})

    # Memories.

    def _book(self, bits: int, antisymmetric: bool = False) -> np.ndarray:
        values = np.sort(self.rng.uniform(-1, 1, 1 << bits)).astype(np.float16) + np.float16(0)
        if antisymmetric:
            lower = -np.abs(values[: len(values) // 2])
            values = np.sort(np.concatenate((lower, -lower))) + np.float16(0)
        return values.view(np.uint16).astype(np.int64)

    def _constants(self) -> np.ndarray:
        config = self.config
        rows: list[np.ndarray] = []

        def add(kind: str, *vectors: np.ndarray) -> None:
            self.constants[kind].append(len(rows))
            for vector in vectors:
                padded = np.zeros(row_count(len(vector)) * ROW_ELEMENTS, dtype=np.int64)
                padded[: len(vector)] = vector
                rows.extend(padded.reshape(-1, ROW_ELEMENTS))

        for _ in range(2):
            a, b = self._book(config.bits_a), self._book(config.bits_b, config.antisymmetric)
            add("activation", a, midpoints(torch.from_numpy(a)).numpy())
            add("kmeans", codebook_packet(a, b, config.product, config.antisymmetric))
            v = self._book(config.bits_b, config.antisymmetric)
            add("integer", integer_packet(v, config.bits_a, config.product, config.antisymmetric))
        for _ in range(3 if config.experts else 0):
            add("base", self.rng.integers(0, 1 << 16, ROW_ELEMENTS))
        if self.faults:  # a word beyond 1: refused, and the codebook before it is gone
            rows[self.constants["activation"][1] + 1][1] = 0x3C01
            rows[self.constants["integer"][1]][2] = 0xC000
        return np.array(rows)

    def _values(self, rows: int) -> np.ndarray:
        """Mostly moderate numbers; some rows not negative, small integers, subnormals, extremes."""
        words = _moderate(self.rng, (rows, ROW_ELEMENTS))
        for row in range(rows):
            kind = self.rng.integers(0, 8)
            if kind <= 2:
                words[row] &= 0x7FFF
            elif kind == 3:
                words[row] = self.rng.choice([0, 0x8000, 1, 0x3C00, 0xBC00, 0x03FF], ROW_ELEMENTS)
        if self.faults:
            words[-2, 3], words[-4, 5], words[-6, 0] = 0x7C00, 0x7E00, 0xFC00
        return words

    def _weights(self) -> tuple[list[_Matmul], list[Bytes]]:
        config, rng = self.config, self.rng
        ports: list[list[Bytes]] = [[] for _ in range(config.ports.ports)]
        images, address = [], 0
        word_bytes = config.port_bits // 8
        limit = min(config.slot_elements, 80)
        for length in sorted({1, 16, 17, min(40, limit), limit}):
            outputs = int(rng.integers(1, 2 * config.group_outputs if length < 20 else 40))
            index = rng.integers(0, 1 << config.bits_b, (length, outputs))
            scale = _moderate(rng, outputs)
            if self.faults and length == 17:
                scale[0] = 0x7C00
            made = weight_image(index, scale, config.layout)
            size = config.image_words(length, outputs)
            for port, image in zip(ports, made, strict=True):
                whole = np.zeros(size * word_bytes, dtype=np.uint8)
                whole[: len(image)] = image
                port.append(whole)
            images.append(_Matmul(length, outputs, address))
            address += size
        return images, [np.concatenate(port) for port in ports]

    # The cache.

    def _request(self, op: Op, **fields) -> Status:
        assert self.machine.cache is not None
        request = Request(op, **fields)
        status = self.machine.cache.request(request).status
        self.requests.append((request, status))
        return status

    def _open(self) -> None:
        """Sequences of programs before this one end. All but one are open then."""
        cache = self.config.cache
        for sequence in range(cache.sequences):
            self._request(Op.FREE, sequence=sequence)
        for layer in range(cache.layers):
            for kv in Kv:
                if self.faults and (layer, kv) == (cache.layers - 1, Kv.V):
                    continue
                inner, outer = (self.rng.uniform(*ends) for ends in ((0.01, 0.2), (1.0, 3.0)))
                words = np.array([-outer, -inner, inner, outer]).astype(np.float16)
                thresholds = words.view(np.uint16).tolist()
                self._request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=thresholds)
        for _ in range(max(1, cache.sequences - 1)):
            self._request(Op.OPEN)

    def _length(self, sequence: int, layer: int, kv: int) -> int:
        """Tokens that the cache has."""
        assert self.machine.cache is not None
        return self.machine.cache.tokens(sequence, layer, kv)

    def rebatch(self) -> None:
        """Another batch: the positions that come next in some layer, and others."""
        rng, config = self.rng, self.config
        assert self.machine.cache is not None
        self.layer = int(rng.integers(config.cache.layers))
        kinds = rng.permutation(len(Kv)).tolist()
        # One command or two of each kind: for the places before ``cut``, and for the others.
        cut = int(rng.integers(config.batch))
        parts = [(0, cut), (cut, config.batch - cut)] if cut else [(0, config.batch)]
        wanted = [(Opcode.APPEND, kind) for kind in kinds]
        wanted += [(Opcode.ATTEND, 0)] * int(rng.integers(1, 3))
        self.due = [(*each, *part) for each in wanted for part in parts]
        ahead = dict.fromkeys(range(config.cache.sequences), 0)
        batch: list[Place | None] = []
        for _ in range(config.batch):
            sequence = int(rng.integers(max(1, config.cache.sequences - 1)))
            if self.faults and rng.random() < 0.1:
                sequence = config.cache.sequences - 1  # not open
            position = self._length(sequence, self.layer, Kv.K) + ahead[sequence]
            ahead[sequence] += 1
            if self.faults and rng.random() < 0.1:
                position = max(0, position + int(rng.integers(-3, 3)))
            token = int(rng.integers(_ENTRIES + 4 * self.faults))
            place = Place(sequence, position, token, self._sampling())
            batch.append(place if rng.random() < 0.8 else None)
        memory = [Status.OK] * config.engines
        if self.faults and rng.random() < 0.25:
            refused = Status.SLAVE_ERROR if rng.random() < 0.5 else Status.DECODE_ERROR
            memory = [refused if rng.random() < 0.5 else each for each in memory]
            memory[int(rng.integers(config.engines))] = refused
        self.machine.cache.batch = batch
        self.machine.cache.memory = memory
        self.steps.append(Step(len(self.results), tuple(batch), tuple(memory)))

    def _sampling(self) -> Sampling | None:
        """None of half of the places; any k, temperatures from very low ones to 16."""
        rng = self.rng
        if rng.random() < 0.5:
            return None
        inverse, seed = int(rng.integers(0x2C00, 0x5000)), int(rng.integers(1 << 32))
        return Sampling(int(rng.integers(self.config.top + 2)), inverse, seed)

    def _draw_cache(self) -> tuple[Opcode, dict[str, int]]:
        """The next command that the batch is for, or any APPEND or ATTEND."""
        rng, config = self.rng, self.config
        kv = config.cache.kv
        layer = self.layer
        if self.due and rng.random() < 0.8:
            opcode, kind, first, tokens = self.due[0]
        else:
            first = int(rng.integers(config.batch))
            tokens = int(rng.integers(1, config.batch - first + 1))
            layer = int(rng.integers(config.cache.layers))
            opcode = Opcode.APPEND if rng.random() < 0.5 else Opcode.ATTEND
            kind = int(rng.integers(len(Kv)))
        operands = {"tokens": tokens, "layer": layer, "place": first}
        if opcode == Opcode.APPEND:
            row, stride = self._vector(kv.elements, tokens)
            return opcode, operands | {"src": row, "stride": stride, "kv": kind}
        heads = kv.heads * (config.queries or 1)
        for _ in range(20):
            row, stride = self._vector(heads * kv.head_dim, tokens)
            dst, dst_stride = self._vector(heads * kv.head_dim, tokens)
            drawn = operands | {
                "src": row, "stride": stride, "dst": dst, "dst_stride": dst_stride, "heads": heads,
                "window": int(rng.integers(6)) if config.cache.windows else 0,
                **self._draw_rules(heads),
            }  # fmt: skip
            if not overlap(Opcode.ATTEND, drawn, config):
                break
        return Opcode.ATTEND, drawn

    def _draw_rules(self, heads: int) -> dict[str, int]:
        """A cap that some scores reach, and any rows as sinks, where the cache has such."""
        rng, cache = self.rng, self.config.cache
        rules = {"cap": 0, "sinks": 0, "has_sinks": 0}
        if cache.caps and rng.random() < 0.7:
            rules["cap"] = cap_operand(float(2 ** rng.uniform(-3, 6)))
        if cache.sinks and rng.random() < 0.7:
            rows = self.config.sink_rows(heads)
            rules |= {"sinks": self._vector(rows * ROW_ELEMENTS, 1)[0], "has_sinks": 1}
        return rules

    def _draw_entries(self) -> tuple[Opcode, dict[str, int]]:
        """LOAD_AT, or TOP_K of any numbers."""
        rng, config = self.rng, self.config
        tokens = int(rng.integers(1, config.batch + 1))
        if rng.random() < 0.5:
            rows = int(rng.integers(1, 4))
            dst, stride = self._vector(ROW_ELEMENTS * rows, tokens)
            last = self.data_rows - rows * _ENTRIES
            operands = {
                "address": int(rng.integers(last + 1)), "rows": rows,
                "index": int(rng.integers(len(Index) if config.experts else Index.CHOICE)),
                "limit": _ENTRIES, "dst": dst, "stride": stride, "tokens": tokens,
            }  # fmt: skip
            if config.experts:
                operands["place"] = int(rng.integers(config.batch - tokens + 1))
                operands["rank"] = int(rng.integers(config.experts))
            return Opcode.LOAD_AT, operands
        length = int(rng.integers(1, 60))
        src, stride = self._vector(length, tokens)
        chosen = {}
        if config.experts and rng.random() < 0.6:  # of so many ids most are entries
            length = int(rng.integers(1, _ENTRIES + 2))
            chosen = {"first": 0, "end": 1, "route": int(rng.integers(1, config.experts + 1))}
        return Opcode.TOP_K, {
            "src": src, "stride": stride, "tokens": tokens, "length": length,
            "first": int(rng.integers(1 << 20)),
            "place": int(rng.integers(config.batch - tokens + 1)), "begin": int(rng.integers(2)),
            "end": int(rng.integers(2)),
        } | chosen  # fmt: skip

    # Commands.

    def _vector(self, length: int, tokens: int) -> tuple[int, int]:
        """(row, stride) of vectors among the values."""
        need, room = row_count(length), self.rows - self.first
        stride = need + int(self.rng.integers(0, 2))
        if stride * (tokens - 1) + need > room:
            stride = need
        last = room - stride * (tokens - 1) - need
        return self.first + int(self.rng.integers(0, max(last, 0) + 1)), stride

    def _draw(self) -> tuple[Opcode, dict[str, int]]:
        rng, config = self.rng, self.config
        image = self.images[int(rng.integers(len(self.images)))]
        length = int(rng.choice([image.length, image.length, 1, 15, 16, 33, 64]))
        length = min(length, config.slot_elements, config.softmax_elements)
        tokens = int(rng.integers(1, min(8, config.slots) + 1))
        slot = int(rng.integers(0, config.slots - tokens + 1))
        row, stride = self._vector(length, tokens)
        dst, dst_stride = self._vector(length, tokens)
        if rng.random() < 0.2:
            dst, dst_stride = row, stride  # in place
        other, other_stride = self._vector(length, tokens)
        opcodes = [
            Opcode.LOAD, Opcode.LOAD, Opcode.ACTIVATION_CODEBOOK, Opcode.QUANTIZE,
            Opcode.QUANTIZE, Opcode.QUANTIZE, Opcode.QUANTIZE_INTEGER, Opcode.LANE_CODEBOOK,
            Opcode.MATMUL, Opcode.MATMUL, Opcode.MATMUL, Opcode.MATMUL, Opcode.BINARY,
            Opcode.AXPY, Opcode.ROTARY, Opcode.SOFTMAX, Opcode.FUNCTION,
            Opcode.FUNCTION_CODEBOOK, Opcode.ACTIVATE, Opcode.GLU, Opcode.READ, Opcode.READ_SLOT,
        ]  # fmt: skip
        if config.batch and rng.random() < 0.3:
            return self._draw_cache()
        if config.batch and rng.random() < 0.2:
            return self._draw_entries()
        if config.experts and rng.random() < 0.05:
            return Opcode.WEIGHT_BASE, {"src": int(rng.choice(self.constants["base"]))}
        opcode = opcodes[int(rng.integers(len(opcodes)))]
        if opcode == Opcode.LOAD:
            rows = int(rng.integers(1, 9))
            address = int(rng.integers(self.first, self.data_rows - rows + 1))
            return opcode, {"address": address, "rows": rows, "dst": self._vector(16 * rows, 1)[0]}
        if opcode in (Opcode.ACTIVATION_CODEBOOK, Opcode.FUNCTION_CODEBOOK):
            operands = {"src": int(rng.choice(self.constants["activation"]))}
            if opcode == Opcode.FUNCTION_CODEBOOK:
                operands["table"] = int(rng.integers(2))
            return opcode, operands
        if opcode == Opcode.QUANTIZE:
            k_max, k_min = (int(k) for k in rng.integers(0, 4, 2))
            if rng.random() < 0.6:
                slot = 0
            return opcode, {
                "src": row, "stride": stride, "tokens": tokens, "length": length, "slot": slot,
                "k_max": k_max, "k_min": k_min,
                "mode": int(rng.choice([OutlierMode.ONLINE] * 3 + [OutlierMode.OFFLINE])),
                "thresholds": int(rng.integers(0x3C00, 0x4300)) << 16
                | int(rng.integers(0xBC00, 0xC300)),
                "norm": int(rng.choice(list(Norm))), "epsilon": 0x3727C5AC,
            }  # fmt: skip
        if opcode == Opcode.QUANTIZE_INTEGER:
            return opcode, {
                "src": row, "stride": stride, "tokens": tokens, "length": length, "slot": slot,
            }  # fmt: skip
        if opcode == Opcode.LANE_CODEBOOK:
            kind = Codebook(int(rng.choice([Codebook.KMEANS, Codebook.KMEANS, Codebook.INTEGER])))
            return opcode, {"src": int(rng.choice(self.constants[kind.name.lower()])), "kind": kind}
        if opcode == Opcode.MATMUL:
            return opcode, self._draw_matmul(tokens)
        if opcode == Opcode.BINARY:
            return opcode, {
                "op": int(rng.integers(len(config.extra.operations))), "a": row,
                "a_stride": stride, "b": other, "b_stride": int(rng.choice([0, other_stride])),
                "dst": dst, "dst_stride": dst_stride, "tokens": tokens, "length": length,
            }  # fmt: skip
        if opcode == Opcode.AXPY:
            return opcode, {
                "scalar": int(rng.integers(len(Scalar))), "immediate": int(_moderate(rng, 1)[0]),
                "slot": slot, "a": row, "b": other, "dst": dst, "length": length,
            }  # fmt: skip
        if opcode == Opcode.ROTARY:
            heads, size = int(rng.integers(1, 3)), int(rng.choice([32, 64]))
            return opcode, {
                "src": self._vector(heads * size, 1)[0], "dst": self._vector(heads * size, 1)[0],
                "cos": self._vector(size // 2, 1)[0], "sin": self._vector(size // 2, 1)[0],
                "heads": heads, "head_size": size,
            }  # fmt: skip
        if opcode == Opcode.SOFTMAX:
            return opcode, {
                "src": row, "stride": stride, "dst": dst, "dst_stride": dst_stride,
                "tokens": tokens, "length": length,
            }  # fmt: skip
        function = int(config.extra.functions[rng.integers(len(config.extra.functions))])
        if opcode == Opcode.FUNCTION:
            return opcode, {"function": function, "src": row, "dst": dst, "length": length}
        if opcode in (Opcode.ACTIVATE, Opcode.GLU):
            slot, length = self._held(integer=False, slot=slot, length=length)
            dst = self._vector(length, 1)[0]
            operands = {"function": function, "dst": dst, "length": length}
            if opcode == Opcode.ACTIVATE:
                return opcode, operands | {"slot": slot}
            return opcode, operands | {
                "slot_a": slot, "slot_b": self._held(False, slot, length, same=True)[0],
            }  # fmt: skip
        if opcode == Opcode.READ:
            return opcode, {"src": row, "rows": int(rng.integers(1, row_count(length) + 1))}
        return Opcode.READ_SLOT, {"slot": self._held(None, slot, length)[0]}

    def _held(
        self, integer: bool | None, slot: int, length: int, same: bool = False
    ) -> tuple[int, int]:
        """A slot in use of this kind, and its length; ``same``: of this length."""
        fits = [
            (n, held.length)
            for n, held in enumerate(self.machine.slots)
            if held is not None
            and (integer is None or held.integer == integer)
            and (not same or held.length == length)
        ]
        return fits[int(self.rng.integers(len(fits)))] if fits else (slot, length)

    def _draw_matmul(self, tokens: int) -> dict[str, int]:
        rng, config, machine = self.rng, self.config, self.machine
        loaded = machine.lane_codebook
        if loaded is not None and loaded[0] == Codebook.INTEGER:
            mode = MatmulMode.INTEGER
        else:
            mode = MatmulMode(int(rng.choice([MatmulMode.KMEANS, MatmulMode.DIRECT])))
        lengths = {image.length: image for image in self.images}
        slot = 0
        image = self.images[int(rng.integers(len(self.images)))]
        if mode != MatmulMode.DIRECT:
            usable = [
                (n, held.length)
                for n, held in enumerate(machine.slots)
                if held is not None
                and held.integer == (mode == MatmulMode.INTEGER)
                and held.length in lengths
            ]
            if usable:
                slot, length = usable[int(rng.integers(len(usable)))]
                image = lengths[length]
                wanted, tokens = tokens, 0
                while (slot + tokens, length) in usable and tokens < wanted:
                    tokens += 1
        outputs = image.outputs
        room = 16 * ((self.rows - self.first) // tokens)
        if outputs > room:
            outputs = room  # fewer outputs than the image has are as good
        if -(-image.outputs // config.group_outputs) != -(-outputs // config.group_outputs):
            tokens = 1  # the image still begins with these groups
        src, src_stride = self._vector(image.length, tokens)
        dst, stride = self._vector(outputs, tokens)
        address, based = image.address, {}
        if config.experts and rng.random() < 0.5:
            address, based = (address - machine.base) % (1 << 32), {"based": 1}
        return based | {
            "mode": mode, "slot": slot, "tokens": tokens, "length": image.length,
            "outputs": outputs, "weights": address, "dst": dst, "stride": stride,
            "fold_norm": int(mode != MatmulMode.DIRECT and rng.random() < 0.4),
            "src": src, "src_stride": src_stride,
        }  # fmt: skip

    def _snapshot(self, opcode: Opcode):
        m = self.machine
        is_cache = m.cache is not None and COMMANDS[opcode].unit == Unit.CACHE
        return (
            m.vector.clone(), list(m.slots), m.centroids, m.midpoints, m.lane_codebook,
            dict(m.issued), len(m.readback), list(m.state.codebook),
            copy.deepcopy(m.cache.engines) if is_cache and m.cache else None, list(m.best),
            list(m.choices), m.base,
        )  # fmt: skip

    def _restore(self, kept) -> None:
        m = self.machine
        m.state.vector, m.state.slots, m.centroids, m.midpoints, m.lane_codebook = kept[:5]
        m.issued, m.state.codebook, m.best = kept[5], kept[7], kept[9]
        m.choices, m.base = kept[10], kept[11]
        if kept[8] is not None:
            assert m.cache is not None
            m.cache.engines = kept[8]
        del m.readback[kept[6] :]

    def _emit(self, opcode: Opcode, operands: dict[str, int], after=None) -> Result:
        self.assembler.emit(opcode, operands, after=after, check=False)
        result = self.machine.step(self.assembler.parts[-1][-COMMAND_WORDS:])
        self.results.append(result)
        return result

    def _corrupted(self, opcode: Opcode, operands: dict[str, int]) -> None:
        """One operand becomes any value that its word can hold, or its least or greatest."""
        names = COMMANDS[opcode].operands
        operand = names[int(self.rng.integers(len(names)))]
        top = (1 << operand.bits) - 1
        operands[operand.name] = int(
            self.rng.choice([0, 1, top, int(self.rng.integers(0, top, endpoint=True))])
        )

    def _undefined(self, opcode: Opcode, operands: dict[str, int]) -> bool:
        """The command reads rows that nothing has written."""
        spans = accesses(opcode, operands, self.config).reads("rows")
        return any(first + count > self.rows for first, count in spans)

    def add(self) -> None:
        """One more command. Without faults its status is not a failure."""
        if self.config.batch and self.rng.random() < (0.08 if self.due else 0.5):
            self.rebatch()
        while True:
            opcode, drawn = self._draw()
            operands = COMMANDS[opcode].defaults | drawn
            corrupt = self.faults and self.rng.random() < 0.15
            if corrupt:
                self._corrupted(opcode, operands)
            if corrupt and self.rng.random() < 0.2:
                self._misshapen(opcode, operands)
                return
            if overlap(opcode, operands, self.config):
                continue
            kept = self._snapshot(opcode)
            probe = Assembler(self.config)
            probe.emit(opcode, operands, after={}, check=False)
            status = self.machine.step(probe.words()).status
            undefined = self._undefined(opcode, operands) and not status & _EARLY
            # A slot or codebook that is not there is found at every other command: keep a few.
            dull = CommandStatus.SLOT_MISMATCH | CommandStatus.CODEBOOK_MISSING
            unwanted = status & FAILED and (not self.faults or (status & dull and not corrupt))
            if undefined or (unwanted and self.rng.random() < (0.97 if self.faults else 1.0)):
                self._restore(kept)
                continue
            tag = self.assembler.emit(opcode, operands, check=False)
            self.results.append(Result(tag, COMMANDS[opcode].unit, status))
            asked = opcode, *(operands.get(name, 0) for name in ("kv", "place", "tokens"))
            if self.due and asked == self.due[0]:
                del self.due[0]
            return

    def _misshapen(self, opcode: Opcode, operands: dict[str, int]) -> None:
        """MALFORMED, or a wait for what was never issued: DEPENDENCY."""
        kind = int(self.rng.integers(4))
        unit = COMMANDS[opcode].unit
        if kind == 0:
            ahead = self.assembler.issued[unit] + int(self.rng.integers(1, 1000))
            self._emit(opcode, operands, after={unit: ahead})
            return
        words = self.assembler.parts[-1]
        if kind == 1:  # no such opcode: the assembler does not know of it
            words += [0xFF | int(self.rng.integers(1 << 16)) << 16] + [0] * (COMMAND_WORDS - 1)
        else:
            self.assembler.emit(opcode, operands, check=False)
            words[-1 if kind == 2 else -COMMAND_WORDS] |= 1 << int(self.rng.integers(8, 16))
        self.results.append(self.machine.step(words[-COMMAND_WORDS:]))


def random_program(
    config: MachineConfig, seed: int = 0, commands: int = 60, faults: bool = False
) -> Program:
    """A program of about ``commands`` commands that ends by reading what it has computed.

    faults: some commands are corrupted, some memory words answer with an error, some numbers are
    NaN or infinite; without, no status has a FAILED bit. The program needs a good 40 rows of vector
    memory. ValueError: fewer.
    """
    maker = _Maker(config, np.random.default_rng(seed), faults)
    if faults:
        for memory in maker.machine.weights[:1]:
            memory.faults.add(maker.images[-1].address)
    else:
        book, packet = maker.constants["activation"], maker.constants["kmeans"]
        maker._emit(Opcode.ACTIVATION_CODEBOOK, {"src": book[0]})
        maker._emit(Opcode.LANE_CODEBOOK, {"src": packet[0], "kind": Codebook.KMEANS})
        maker._emit(Opcode.FUNCTION_CODEBOOK, {"src": book[0], "table": 0})
        maker._emit(Opcode.FUNCTION_CODEBOOK, {"src": book[1], "table": 1})
    while len(maker.results) < commands:
        maker.add()
    maker._emit(Opcode.READ, {"src": maker.first, "rows": maker.rows - maker.first})
    for slot, held in enumerate(maker.machine.slots):
        if held is not None:
            maker._emit(Opcode.READ_SLOT, {"slot": slot})
    machine = maker.machine
    return Program(
        words=maker.assembler.words(),
        data=machine.data.data,
        weights=[memory.data for memory in machine.weights],
        data_faults=machine.data.faults,
        weight_faults=[memory.faults for memory in machine.weights],
        results=maker.results,
        readback=machine.readback,
        vector=machine.vector,
        requests=tuple(maker.requests),
        steps=tuple(maker.steps),
    )
