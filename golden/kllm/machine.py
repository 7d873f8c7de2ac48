"""The results of the KLLM accelerator's programs: commands one after another, bit-true.

``Machine.run`` executes the commands of golden.kllm.isa in program order. Hardware overlaps them.
It gives the same words as long as each command waits for what it depends on (the waits that
golden.kllm.assembler sets). Aborts are not modelled: where they fall is a matter of time.

Each command's arithmetic is that of golden.kllm.quantizer, .matmul and .functional. A command looks
for faults in this order, and reads nothing further once it has found one:

    MALFORMED; DEPENDENCY; RANGE and CAPACITY (k_max + k_min >= length); CODEBOOK_MISSING;
    SLOT_MISMATCH; faults of the data; BUS_ERROR, which is always the only bit.

A failed command leaves vector memory and slots as they were, with these exceptions:

- LOAD and MATMUL with BUS_ERROR fill their whole destination with NaN, and so does MATMUL DIRECT
  with NONFINITE;
- SOFTMAX writes the rows that have a result;
- QUANTIZE and QUANTIZE_INTEGER fill the slots of the good tokens and empty those of the others;
- APPEND and ATTEND do the tokens that have no fault;
- LOAD_AT fills with zeros where there is no entry or no choice, and with NaN after an error;
- TOP_K with NONFINITE leaves NaN out and gives its ids;
- ATTEND with BUS_ERROR or NONFINITE writes NaN for what has no result;
- LANE_CODEBOOK and ACTIVATION_CODEBOOK with a word beyond -1..1 leave no codebook.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import mul
from golden.kllm import functional, quantizer
from golden.kllm.cache import CacheUnit, Place
from golden.kllm.config import MachineConfig
from golden.kllm.engines import screen
from golden.kllm.format import FURTHEST, NO_OUTPUT, Status, groups, weight_port_words
from golden.kllm.functional import FunctionalState, Slot
from golden.kllm.image import weights_of_image
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    NOBODY,
    ROW_BYTES,
    ROW_ELEMENTS,
    Codebook,
    CommandStatus,
    Index,
    MatmulMode,
    Norm,
    Opcode,
    OutlierMode,
    Outliers,
    Statistics,
    Unit,
    decode,
    row_count,
    slot_word_count,
)
from golden.kllm.issue import (
    base_rows,
    codebook_fault,
    codebook_rows,
    matmul_fault,
    weight_address,
)
from golden.kllm.matmul import integer_matmul, matmul
from golden.kllm.records import Packet, Tokens, Weight
from golden.kllm.top_k import draw, fold, ids, word_of
from golden.oaken.attention import Rules

_MAGNITUDE = FP16.sign_bit - 1


@dataclasses.dataclass(frozen=True)
class Result:
    """The status of a command; ``word`` is how the hardware reports it."""

    tag: int
    unit: Unit
    status: CommandStatus

    @property
    def word(self) -> int:
        """Status in bits 0..12, unit in 13..15, tag in 16..31."""
        return int(self.status) | int(self.unit) << 13 | self.tag << 16


@dataclasses.dataclass
class Memory:
    """A memory on a read port: words of ``word_bytes`` bytes, little-endian.

    data: uint8, a multiple of word_bytes. A read of a word in ``faults`` (word addresses) or after
    the end returns an error.
    """

    data: np.ndarray
    word_bytes: int
    faults: set[int] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        self.data = np.asarray(self.data, dtype=np.uint8)
        if len(self.data) % self.word_bytes:
            raise ValueError(f"memory must be a multiple of {self.word_bytes} bytes")

    def read(self, address: int, words: int) -> np.ndarray | None:
        """Bytes of ``words`` words from word ``address`` on; None: some word gives an error."""
        first, end = address * self.word_bytes, (address + words) * self.word_bytes
        failed = words and end > len(self.data)
        if failed or any(address <= bad < address + words for bad in self.faults):
            return None
        return self.data[first:end]

    def write(self, address: int, data: np.ndarray) -> None:
        """Bytes from word ``address`` on, as the host writes them; ValueError: beyond the end."""
        first = address * self.word_bytes
        if first + len(data) > len(self.data):
            raise ValueError(f"{len(data)} bytes at word {address} leave the memory")
        self.data[first : first + len(data)] = data


class Machine:
    """An accelerator and its memories.

    vector: (vector_rows, 16) int64 FP16 words; slots: ``Slot`` or None where not valid;
    data: rows of 32 bytes; weights: one memory per weight port; issued: commands per unit so far;
    cache: its unit, if the machine has one; best: ranks of golden.kllm.top_k, of each token;
    choices: those that TOP_K with ``route`` has left of each place; base: of weights.
    What hardware leaves undefined after reset (the vector memory) is 0 here: a program must not
    read what was not written.
    """

    def __init__(
        self,
        config: MachineConfig,
        data: np.ndarray | None = None,
        weights: Sequence[np.ndarray] | None = None,
    ):
        self.config = config
        empty = np.zeros(0, dtype=np.uint8)
        self.data = Memory(empty if data is None else np.array(data), ROW_BYTES)
        images = [empty] * config.ports.ports if weights is None else list(weights)
        if len(images) != config.ports.ports:
            raise ValueError(f"{config.ports.ports} weight memories needed, not {len(images)}")
        self.weights = [Memory(np.array(image), config.port_bits // 8) for image in images]
        self.state = FunctionalState(
            vector=torch.zeros(config.vector_rows, ROW_ELEMENTS, dtype=torch.int64),
            slots=[None] * config.slots,
            slot_elements=config.slot_elements,
            softmax_elements=config.softmax_elements,
            bits_a=config.bits_a,
            extra=config.extra,
        )
        self.centroids: Tensor | None = None  # of the clustering unit
        self.midpoints = torch.zeros(0, dtype=torch.int64)
        self.lane_codebook: tuple[Codebook, Tensor] | None = None
        self.cache = CacheUnit(config.cache, config.batch, config.engines) if config.batch else None
        self.best = [torch.zeros(0, dtype=torch.int64)] * config.batch
        self.choices = [torch.zeros(0, dtype=torch.int64)] * config.batch
        self.base = 0
        self.issued = dict.fromkeys(Unit, 0)
        self.readback: list[int] = []  # words for the host, since the last run began

    @property
    def vector(self) -> Tensor:
        return self.state.vector

    @property
    def slots(self) -> list[Slot | None]:
        return self.state.slots

    # Programs.

    def run(self, words: Sequence[int]) -> list[Result]:
        """Execute a program of COMMAND_WORDS words per command; one result per command.

        ``readback`` then holds the words that READ and READ_SLOT gave.
        ValueError: the words do not make whole commands.
        """
        if len(words) % COMMAND_WORDS:
            raise ValueError(f"a command has {COMMAND_WORDS} words: {len(words)} are none")
        self.readback = []
        return [
            self.step(words[first : first + COMMAND_WORDS])
            for first in range(0, len(words), COMMAND_WORDS)
        ]

    def step(self, words: Sequence[int]) -> Result:
        """Execute one command."""
        words = [int(word) for word in words]
        unit, status = screen(words, list(self.issued.values())[: self.config.units])
        if not status:
            opcode, _, _, operands = decode(words)
            status = self._execute(opcode, operands)
        if unit is not None:
            self.issued[unit] += 1
        return Result(words[0] >> 16, Unit.LOAD if unit is None else unit, status)

    def _execute(self, opcode: Opcode, operands: dict[str, int]) -> CommandStatus:
        unit = COMMANDS[opcode].unit
        if unit == Unit.FUNCTION:
            return functional.execute(self.state, opcode, operands)
        return getattr(self, f"_{opcode.name.lower()}")(**operands)

    # Unit.LOAD

    def _load(self, address: int, rows: int, dst: int) -> CommandStatus:
        if not rows or dst + rows > self.config.vector_rows:
            return CommandStatus.RANGE
        words, status = self._entry(address, rows)
        self.vector[dst : dst + rows] = words
        return status

    def _load_at(self, **o: int) -> CommandStatus:
        assert self.cache is not None
        if self._refused(Opcode.LOAD_AT, o):
            return CommandStatus.RANGE
        is_choice = o["index"] >= Index.CHOICE
        if not self.config.experts and (is_choice or o["place"] or o["rank"]):
            return CommandStatus.RANGE
        status = CommandStatus(0)
        for t in range(o["tokens"]):
            place = self.cache.batch[o["place"] + t]
            words: Tensor | int = 0
            rank, index = 0, None
            if is_choice:
                held = self.choices[o["place"] + t]
                rank = int(held[o["rank"]]) if o["rank"] < len(held) else 0
                index = int(ids(torch.tensor(rank)))
            elif place is not None:
                index = place.position if o["index"] == Index.POSITION else place.token
            if index is not None and index >= o["limit"]:
                status |= CommandStatus.RANGE
            elif o["index"] == Index.CHOICE_VALUE:
                words = word_of(rank)
            elif index is not None:
                words, fault = self._entry(o["address"] + index * o["rows"], o["rows"])
                status |= fault
            row = o["dst"] + t * o["stride"]
            self.vector[row : row + o["rows"]] = words
        return status

    def _entry(self, address: int, rows: int) -> tuple[Tensor | int, CommandStatus]:
        """Rows of the data memory as rows of V; NaN where the memory has an error."""
        found = self.data.read(address, rows)
        if found is None:
            return FP16.canonical_nan, CommandStatus.BUS_ERROR
        words = found.copy().view("<u2").astype(np.int64).reshape(rows, ROW_ELEMENTS)
        return torch.from_numpy(words), CommandStatus(0)

    # Unit.QUANTIZE

    def _faults(self, opcode: Opcode, operands: dict[str, int]) -> CommandStatus:
        return quantizer.faults(
            opcode,
            operands,
            vector_rows=self.config.vector_rows,
            slots=self.config.slots,
            slot_elements=self.config.slot_elements,
        )

    def _activation_codebook(self, src: int) -> CommandStatus:
        fault = self._faults(Opcode.ACTIVATION_CODEBOOK, {"src": src})
        if fault:
            return fault
        entries = 1 << self.config.bits_a
        centroids, midpoints = self.vector[src, :entries], self.vector[src + 1, : entries - 1]
        fault = quantizer.codebook_fault(centroids, midpoints)
        self.centroids = None if fault else centroids.clone()
        self.midpoints = midpoints.clone()
        return fault

    def _tokens(self, src: int, stride: int, tokens: int, length: int) -> Tensor:
        """(tokens, length) words."""
        return torch.stack([self.state.read(src + t * stride, length) for t in range(tokens)])

    def _fill(self, slot: int, made: quantizer.SlotTokens, integer: bool) -> CommandStatus:
        for t, valid in enumerate(made.valid.tolist()):
            self.slots[slot + t] = None
            if valid:
                self.slots[slot + t] = Slot(
                    index=made.index[t],
                    outlier=made.outlier[t],
                    words=made.words[t],
                    scale=int(made.scale[t]),
                    integer=integer,
                    rms_reciprocal=int(made.rms_reciprocal[t]),
                    mean=int(made.mean[t]),
                )
        return made.command_status

    def _quantize(self, **o: int) -> CommandStatus:
        fault = self._faults(Opcode.QUANTIZE, o)
        if fault:
            return fault
        if self.centroids is None:
            return CommandStatus.CODEBOOK_MISSING
        made = quantizer.quantize_command(
            self._tokens(o["src"], o["stride"], o["tokens"], o["length"]),
            self.centroids,
            Outliers(
                o["k_max"],
                o["k_min"],
                OutlierMode(o["mode"]),
                o["thresholds"] >> 16,
                o["thresholds"] & 0xFFFF,
            ),
            self.config.outliers_max,
            Statistics(Norm(o["norm"]), o["epsilon"]),
            self.midpoints,
        )
        return self._fill(o["slot"], made, integer=False)

    def _quantize_integer(self, **o: int) -> CommandStatus:
        fault = self._faults(Opcode.QUANTIZE_INTEGER, o)
        if fault:
            return fault
        x = self._tokens(o["src"], o["stride"], o["tokens"], o["length"])
        made = quantizer.quantize_integer_command(x, self.config.integer_bits)
        return self._fill(o["slot"], made, integer=True)

    # Unit.MATMUL

    def _lane_codebook(self, src: int, kind: int) -> CommandStatus:
        rows = codebook_rows(self.config, src, kind)
        fault = codebook_fault(self.config, rows, ())
        if fault:
            return fault
        packet = self.state.read(src, rows.words)
        fault = codebook_fault(self.config, rows, packet.tolist())
        self.lane_codebook = None if fault else (Codebook(kind), packet)
        return fault

    def _weight_base(self, src: int) -> CommandStatus:
        if not self.config.experts or src + base_rows(src).rows > self.config.vector_rows:
            return CommandStatus.RANGE
        low, high = self.vector[src, :2].tolist()
        self.base = low | high << 16
        return CommandStatus(0)

    def _weights(self, address: int, length: int, outputs: int) -> Weight | None:
        """(length, outputs) indices and (outputs,) scales; None: some port gave an error."""
        config = self.config
        count = config.array_beats(length, outputs)
        image = []
        for port, memory in enumerate(self.weights):
            words = weight_port_words(count, config.beat_words, config.ports.ports, port)
            found = memory.read(address, words)
            if found is None:
                return None
            image.append(found)
        index, scale = weights_of_image(image, length, outputs, config.layout)
        return Weight(
            torch.from_numpy(index.astype(np.int64)), torch.from_numpy(scale.astype(np.int64))
        )

    def _matmul(self, **o: int) -> CommandStatus:
        loaded = self.lane_codebook[0] if self.lane_codebook else None
        fault = matmul_fault(self.config, o, loaded, self.slots)
        if fault:
            return fault
        config, tokens, length, outputs = self.config, o["tokens"], o["length"], o["outputs"]
        # Lanes compute whole groups: faults of columns after the outputs show in the status.
        whole = groups(outputs, config.group_outputs) * config.group_outputs
        weights = self._weights(weight_address(o, self.base), length, whole)
        if weights is None:
            y = torch.full((tokens, outputs), FP16.canonical_nan)
            status = CommandStatus.BUS_ERROR
        else:
            y, status = self._product(o, weights)
        for t in range(tokens):
            row = o["dst"] + t * o["stride"]
            if status & (CommandStatus.BUS_ERROR | CommandStatus.NONFINITE):
                self.vector[row : row + row_count(outputs)] = FP16.canonical_nan
            else:
                self.state.write(row, y[t, :outputs])
        return status

    def _product(self, o: dict[str, int], weight: Weight) -> tuple[Tensor, CommandStatus]:
        assert self.lane_codebook is not None
        config, tokens, length = self.config, o["tokens"], o["length"]
        packet = self.lane_codebook[1]
        held = [slot for slot in self.slots[o["slot"] : o["slot"] + tokens] if slot is not None]
        s_b = weight.scale.expand(tokens, -1)
        if o["fold_norm"]:
            factor = torch.tensor([slot.rms_reciprocal for slot in held])
            s_b = mul(weight.scale[None, :], factor[:, None], FP16, FP32, FP16)
        weight = Weight(weight.index, s_b)
        books = Packet(packet, config.bits_a, config.bits_b, config.product, config.antisymmetric)
        if o["mode"] == MatmulMode.INTEGER:
            made = integer_matmul(Tokens.stack(held), weight, books, config.integer_bits)
        else:
            if o["mode"] == MatmulMode.DIRECT:
                given = Tokens.direct(self._tokens(o["src"], o["src_stride"], tokens, length))
            else:
                given = Tokens.stack(held)
            made = matmul(given, weight, books)
        bits = 0
        for word in made.status.tolist():
            bits |= word
        if bits & int(NO_OUTPUT):
            assert bits & int(NO_OUTPUT) == Status.NONFINITE, Status(bits)
            return made.y, CommandStatus.NONFINITE
        status = CommandStatus(0)
        if bits & Status.OVERFLOW:
            status |= CommandStatus.OVERFLOW
        if bits & Status.SCALE_NONFINITE:
            status |= CommandStatus.SCALE_NONFINITE
        return made.y, status

    # Unit.READ

    def _read(self, src: int, rows: int) -> CommandStatus:
        if not rows or src + rows > self.config.vector_rows:
            return CommandStatus.RANGE
        pairs = self.vector[src : src + rows].reshape(-1, 2)
        self.readback += (pairs[:, 0] | pairs[:, 1] << 16).tolist()
        return CommandStatus(0)

    def _read_slot(self, slot: int) -> CommandStatus:
        if slot >= self.config.slots:
            return CommandStatus.RANGE
        held = self.slots[slot]
        if held is None:
            return CommandStatus.SLOT_MISMATCH
        self.readback += slot_words(held)
        return CommandStatus(0)

    def _top_k(self, **o: int) -> CommandStatus:
        assert self.cache is not None
        if self._refused(Opcode.TOP_K, o) or o["route"] > self.config.experts:
            return CommandStatus.RANGE
        status = CommandStatus(0)
        vectors = self._tokens(o["src"], o["stride"], o["tokens"], o["length"])
        for t, words in enumerate(vectors, o["place"]):
            place = self.cache.batch[t]
            sampling = None if place is None else place.sampling
            k = 1 if sampling is None else min(max(sampling.k, 1), self.config.top)
            k = o["route"] or k
            held = self.best[t][:0] if o["begin"] else self.best[t]
            self.best[t], is_nan = fold(words, o["first"], k, held)
            if is_nan:
                status |= CommandStatus.NONFINITE
            if o["end"] and o["route"]:
                self.choices[t] = self.best[t]
            elif o["end"]:
                self.readback.append(self._choice(self.best[t], place if k > 1 else None))
        return status

    @staticmethod
    def _choice(ranks: Tensor, place: Place | None) -> int:
        """The id that a token gets; place None: that of the best element."""
        if not len(ranks):
            return NOBODY
        if place is None or place.sampling is None:
            return int(ids(ranks[0]))
        return draw(ranks, place.sampling, min(place.position, FURTHEST))

    # Commands of the batch, and Unit.CACHE.

    def _refused(self, opcode: Opcode, o: dict[str, int]) -> bool:
        """Whether a command of the batch is out of range."""
        places = {"rows": self.config.vector_rows, "choices": self.config.batch}
        refused = COMMANDS[opcode].refusal(o, self.config, places)
        return refused is not None or o.get("place", 0) + o["tokens"] > self.config.batch

    def _beyond(self, opcode: Opcode, o: dict[str, int]) -> bool:
        """Whether a command of the unit CACHE is out of range."""
        return self._refused(opcode, o) or o["layer"] >= self.config.cache.layers

    def _append(self, **o: int) -> CommandStatus:
        assert self.cache is not None
        if self._beyond(Opcode.APPEND, o):
            return CommandStatus.RANGE
        x = self._tokens(o["src"], o["stride"], o["tokens"], self.config.cache.kv.elements)
        return self.cache.append(list(x), o["layer"], o["kv"], o["place"])

    def _attend(self, **o: int) -> CommandStatus:
        assert self.cache is not None
        kv, queries = self.config.cache.kv, self.config.queries
        wanted = kv.heads * queries if queries else o["heads"]
        if self._beyond(Opcode.ATTEND, o) or o["heads"] % kv.heads or o["heads"] != wanted:
            return CommandStatus.RANGE
        options = (("window", "windows"), ("cap", "caps"), ("has_sinks", "sinks"))
        if any(o[name] and not getattr(self.config.cache, flag) for name, flag in options):
            return CommandStatus.RANGE
        q = self._tokens(o["src"], o["stride"], o["tokens"], o["heads"] * kv.head_dim)
        sinks = self._sinks(o["sinks"], o["heads"]) if o["has_sinks"] else None
        rules = Rules(o["window"], o["cap"], sinks)
        made, status = self.cache.attend(list(q), o["layer"], o["place"], rules)
        rows = row_count(o["heads"] * kv.head_dim // len(self.cache.engines))  # of a part
        for t, parts in enumerate(made):
            for n, words in enumerate(parts):
                if words is not None:
                    self.state.write(o["dst"] + t * o["dst_stride"] + n * rows, words)
        return status

    def _sinks(self, row: int, heads: int) -> Tensor:
        """(heads,) words, of which those of each job begin with a row."""
        words = self.vector[row : row + self.config.sink_rows(heads)]
        return words.reshape(self.config.jobs, -1)[:, : heads // self.config.jobs].flatten()


def slot_words(slot: Slot) -> list[int]:
    """The words that READ_SLOT returns, in this order.

    1. length and outliers, scale and kind, rms_reciprocal, mean;
    2. 4 words of entries per row;
    3. a mask per row;
    4. a word per outlier.

    Entries after the length are 0.
    """
    length, outliers = slot.length, slot.words[slot.outlier].tolist()
    rows = row_count(length)
    entries, mask = np.zeros((2, rows * ROW_ELEMENTS), dtype=np.int64)
    entries[:length], mask[:length] = slot.index, slot.outlier
    packed = entries.astype(np.uint8).view("<u4")
    masks = mask.reshape(rows, ROW_ELEMENTS) @ (1 << np.arange(ROW_ELEMENTS))
    return [
        length | len(outliers) << 16,
        slot.scale | int(slot.integer) << 16,
        slot.rms_reciprocal,
        slot.mean,
        *packed.tolist(),
        *masks.tolist(),
        *outliers,
    ]


def slot_of_words(words: Sequence[int]) -> tuple[Slot, int]:
    """Inverse of ``slot_words`` at the beginning of ``words``: the slot, and how many it took."""
    length, outliers = words[0] & 0xFFFF, words[0] >> 16
    rows = row_count(length)
    end = slot_word_count(length, outliers)
    if len(words) < end:
        raise ValueError(f"a slot of {length} elements has {end} words, not {len(words)}")
    packed = np.array(words[4 : 4 + 4 * rows], dtype="<u4")
    index = torch.from_numpy(packed.view(np.uint8)[:length].astype(np.int64))
    masks = np.array(words[4 + 4 * rows : 4 + 5 * rows], dtype=np.int64)
    mask = (masks[:, None] >> np.arange(ROW_ELEMENTS) & 1).reshape(-1)[:length]
    outlier = torch.from_numpy(mask == 1)
    x = torch.zeros(length, dtype=torch.int64)
    x[outlier] = torch.tensor(words[4 + 5 * rows : end], dtype=torch.int64)
    return (
        Slot(
            index=index,
            outlier=outlier,
            words=x,
            scale=words[1] & 0xFFFF,
            integer=bool(words[1] >> 16),
            rms_reciprocal=words[2],
            mean=words[3],
        ),
        end,
    )
