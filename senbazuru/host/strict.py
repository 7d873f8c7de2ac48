"""A chip in Python that keeps the rules of docs/host.md, and notes each that the host breaks.

It has no layers. An id depends on all tokens of its sequence, on the position and the sampling. So
a token that is lost, doubled or of another user changes every id after it. ``alone`` says what
a request gets.
"""

import ctypes
import dataclasses
import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from golden.axi.format import CACHE_REGISTERS, REGISTERS
from golden.kllm.engines import Entry, Sampling, answer_word, batch_table, request_of
from golden.kllm.fetch import Answer
from golden.kllm.isa import RUN_CHECKS, RUN_UNIT, CommandStatus, RunStatus, Unit
from golden.kllm.model.host_image import HEADER_WORDS, MAGIC, VERSION
from golden.paging.format import Op, Status
from senbazuru.host.engine import Chip, header

_BYTES = 64  # of a program
_FIRST_ROW = 100
_PASS = 1 << 32
_NAMES = {each.offset: name for name, each in (REGISTERS | CACHE_REGISTERS).items()}
_OK, _NOTHING, _SILENT, _CHIP, _NO_ROOM = (
    header.constants[f"SZR_{name}"] for name in ("OK", "NOTHING", "SILENT", "CHIP", "NO_ROOM")
)
DONE = Answer(0, RUN_UNIT, 7)
FORK_FAULTS = (Status.OUT_OF_PAGES, Status.SLAVE_ERROR, Status.DECODE_ERROR)
_SOFT = RunStatus.OVERFLOW | RunStatus.SCALE_NONFINITE


@dataclasses.dataclass(frozen=True)
class Sizes:
    """page_tokens: tokens of a page; refused: steps that the machine has no room for"""

    vocabulary: int = 1000
    context: int = 64
    places: int = 8
    sequences: int = 8
    top: int = 6
    pages: int = 1000
    page_tokens: int = 4
    layers: int = 2
    refused: frozenset[tuple[int, int]] = frozenset()
    forks: bool = False

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def programs(self) -> dict[tuple[int, int], bytes]:
        """The bytes of a program by tokens and choosing places."""
        pairs = [(t, c) for t in range(1, self.places + 1) for c in range(t + 1)]
        return {
            pair: struct.pack("<2I", *pair).ljust(_BYTES, b"p")
            for pair in pairs
            if pair not in self.refused
        }

    def thresholds(self) -> list[int]:
        return [1000 + n for n in range(4 * self.layers)]

    def image(self) -> bytes:
        """The bytes, laid out as golden.kllm.model.host_image does."""
        programs = self.programs()
        pages = [self.pages_of(tokens) for tokens in range(self.context + 1)]
        at = 4 * (HEADER_WORDS + 4 * self.layers + len(pages) + 4 * len(programs))
        entries: list[int] = []
        for tokens, choosing in programs:
            entries += [tokens | choosing << 16, at, _BYTES, 10 * tokens]
            at += _BYTES
        words = [
            self.vocabulary, self.context, self.places, self.sequences, self.top, self.pages,
            self.layers, _FIRST_ROW, len(programs), self.forks, 0, 0, *self.thresholds(),
            *pages, *entries,
        ]  # fmt: skip
        body = struct.pack(f"<{len(words)}I", *words) + b"".join(programs.values())
        return struct.pack("<4I", MAGIC, VERSION, at, zlib.crc32(body)) + body


def next_id(history: Sequence[int], sampling: Sampling | None, vocabulary: int) -> int:
    """The id that follows these tokens."""
    said = repr((list(history), sampling)).encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest()) % vocabulary


def alone(
    sizes: Sizes, prompt: Sequence[int], count: int, sampling: Sampling | None = None,
    stops: Sequence[int] = (),
) -> list[int]:  # fmt: skip
    """The chosen tokens of a request that nothing disturbs."""
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + count, sizes.context):
        tokens.append(next_id(tokens, sampling, sizes.vocabulary))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


# What becomes of a FORK: OUT_OF_PAGES, or an error of the pages' memory; OK: nothing goes wrong.
ForkFault = Callable[[], Status]
# What goes wrong in a step: (number of the step from 0 on, places) -> an answer, or None.
Fault = Callable[[int, list[Entry]], Answer | None]


class StrictChip(Chip):
    """fault : called before each step; fork_fault : before each FORK
    busy : cycles of each unit so far, modulo 2**32; None: a chip without such registers
    work : cycles of each unit in each step

    forks : FORKs that made a child
    polls : reads of RESULT before it is there; broken : rules that the host did not keep
    memory : what the host wrote to the data memory, by address
    """

    def __init__(self, sizes: Sizes, fault: Fault = lambda _step, _places: None) -> None:
        self.sizes, self.fault, self.polls = sizes, fault, 3
        self.fork_fault: ForkFault = lambda: Status.OK
        self.forks = 0
        self.broken: list[str] = []
        self.memory: dict[int, bytes] = {}
        self.steps, self.waits, self.most_open = 0, 0, 0
        self.batches: list[list[Entry]] = []  # the places of each step
        self.is_silent = False
        self.now = 0
        # The first steps go past 2**32.
        self.busy: list[int] | None = [-(unit + 1) * 1500 % _PASS for unit in Unit]
        self.work: list[list[int]] = []
        self.checked: set[int] = set()
        self.given = 0  # pages
        self._programs = {text: pair for pair, text in sizes.programs().items()}
        self._begin()
        self._functions = {
            name: kind(getattr(self, f"_{name}"))
            for name, kind in header.structures["szr_backend"]._fields_
            if name != "chip"
        }
        self.backend = header.structures["szr_backend"](chip=None, **self._functions)

    @property
    def free_pages(self) -> int:
        """A page that several sequences have is one."""
        used = {page for pages in self.pages.values() for page in pages}
        return self.sizes.pages - len(used)

    def _begin(self) -> None:
        self.sequences: dict[int, list[int]] = {}
        self.pages: dict[int, list[int]] = {}  # numbers of the pages of each
        self.children: set[int] = set()
        self._table: list[Entry | None] = [None] * self.sizes.places
        self._words: dict[str, list[int]] = {"REQUEST": [], "BATCH": []}
        self._queues: dict[str, list[int]] = {"ANSWER": [], "RESULT": [], "READBACK": []}
        self._thresholds: dict[tuple[int, int], list[int]] = {}
        self._last = -1  # the sequence that was freed last: OPEN gives another where it can

    # The backend.

    def _write(self, _chip: int, offset: int, word: int) -> int:
        self.now += 1
        name = _NAMES[offset]
        if self.now % 7 == 0:
            return _NOTHING  # a queue that is full
        if name == "RUN":
            self._run(word)
        elif name in self._words:
            self._words[name].append(word)
            (self._take_request if name == "REQUEST" else self._take_batch)()
        else:
            self.broken.append(f"a write of {name}")
        return _OK

    def _read(self, _chip: int, offset: int, to: Any) -> int:
        self.now += 1
        name = _NAMES[offset]
        if name.startswith("BUSY_"):
            if self.busy is None:
                return _NOTHING
            to[0] = self.busy[Unit[name.removeprefix("BUSY_")]]
            return _OK
        if name == "RESULT" and (self.is_silent or self.waits < self.polls):
            return _NOTHING
        if not self._queues[name]:
            return _NOTHING
        to[0] = self._queues[name].pop(0)
        return _OK

    def _write_data(self, _chip: int, address: int, source: int, size: int) -> int:
        if address < 32 * _FIRST_ROW:
            self.broken.append("a program over the data")
        self.memory[address] = ctypes.string_at(source, size)
        return _OK

    def _wait(self, _chip: int) -> int:
        self.now += 1
        self.waits += 1
        return _SILENT if self.waits > 1000 else _OK

    def _reset(self, _chip: int) -> int:
        self._begin()
        self.is_silent, self.waits = False, 0
        self.busy = self.busy and [0] * len(Unit)
        return _OK

    def _cycle(self, _chip: int) -> int:
        return self.now

    # Requests.

    def _take_request(self) -> None:
        words = self._words["REQUEST"]
        if len(words) < 4:
            return
        request = request_of(words)
        sequence, status = request["sequence"], Status.OK
        if request["op"] == Op.OPEN:
            status, sequence = self._open()
        elif request["op"] == Op.FORK and self.sizes.forks:
            status, sequence = self._fork(sequence, request["token"])
        elif request["op"] == Op.FREE:
            self._last = sequence
            self.pages.pop(sequence, None)
            self.children.discard(sequence)
            if self.sequences.pop(sequence, None) is None:
                status = Status.SEQUENCE_UNKNOWN
        elif request["op"] == Op.THRESHOLDS:
            if self.sequences:
                status = Status.THRESHOLDS
            self._thresholds[request["layer"], request["kv"]] = words[2:]
        else:
            status = Status.BAD_REQUEST
        if status and (request["op"] != Op.FORK or status not in FORK_FAULTS):
            self.broken.append(f"a request that gives {status.name}")
        self.most_open = max(self.most_open, len(self.sequences))
        self._queues["ANSWER"].append(answer_word(request["tag"], status, sequence))
        words.clear()

    def _open(self) -> tuple[Status, int]:
        free = [n for n in range(self.sizes.sequences) if n not in self.sequences]
        if not free:
            return Status.TABLE_FULL, 0
        # Not in order, and not the one that was freed last.
        sequence = max(free, key=lambda n: (n != self._last, n))
        self.sequences[sequence], self.pages[sequence] = [], []
        return Status.OK, sequence

    def _fork(self, parent: int, count: int) -> tuple[Status, int]:
        """A child has the full pages of its parent, and a copy of one that is not full."""
        if parent not in self.sequences:
            return Status.SEQUENCE_UNKNOWN, parent
        tokens = self.sequences[parent]
        if parent in self.children:
            return Status.BAD_REQUEST, parent
        if count != len(tokens):
            return Status.BEYOND_LENGTH if count > len(tokens) else Status.TOKEN_ORDER, parent
        if status := self.fork_fault():
            return status, parent
        full = len(tokens) // self.sizes.page_tokens
        if len(tokens) % self.sizes.page_tokens and not self.free_pages:
            return Status.OUT_OF_PAGES, parent
        status, child = self._open()
        if status:
            return status, parent
        self.forks += 1
        self.children.add(child)
        self.sequences[child] = [*tokens]
        self.pages[child] = self.pages[parent][:full]
        if len(tokens) % self.sizes.page_tokens:
            self._take_page(child)
        return Status.OK, child

    def _take_page(self, sequence: int) -> None:
        self.given += 1
        self.pages[sequence].append(self.given)

    def _take_batch(self) -> None:
        words = self._words["BATCH"]
        size = 5 if words[0] >> 9 & 1 else 3
        if len(words) == size:
            place = words[0] & 0xFF
            if place >= self.sizes.places:
                self.broken.append(f"place {place}")
            else:
                self._table[place] = batch_table(words, self.sizes.places)[place]
            words.clear()

    # Steps.

    def _run(self, word: int) -> None:
        self.waits = 0
        if [w for words in self._thresholds.values() for w in words] != self.sizes.thresholds():
            self.broken.append("thresholds")
        row = word & (RUN_CHECKS - 1)
        pair = self._programs.get(self.memory.get(32 * row, b""))
        if pair is None:
            self._queues["RESULT"].append(Answer(RunStatus.HEADER, RUN_UNIT, 0).word)
            return
        if row not in self.checked and not word & RUN_CHECKS:
            self.broken.append("a program that was not checked")
        self.checked.add(row)
        tokens, choosing = pair
        places = [entry for entry in self._table[:tokens] if entry is not None]
        if len(places) < tokens:
            self.broken.append("a place without a token")
        self._table = [None] * self.sizes.places  # a place that is not written again is empty
        self.batches.append(places)
        self.work.append([100 * (unit + 1) * tokens + self.steps for unit in Unit])
        if self.busy is not None:
            pairs = zip(self.busy, self.work[-1], strict=True)
            self.busy = [(before + cycles) % _PASS for before, cycles in pairs]
        answer = self.fault(self.steps, places)
        self.steps += 1
        self._queues["RESULT"].append(self._step(places, choosing, answer or DONE).word)

    def _step(self, places: list[Entry], choosing: int, answer: Answer) -> Answer:
        """A step with a fault appends some tokens: here every second one."""
        is_done = answer.unit == RUN_UNIT and not answer.status & ~_SOFT
        for number, place in enumerate(places):
            status = self._append(place) if is_done or number % 2 else CommandStatus(0)
            if status and answer == DONE:
                answer = Answer(status, Unit.CACHE, 40 + number)
        if is_done or answer.unit != RUN_UNIT:
            self._choose(places[len(places) - choosing :])
        return answer

    def _append(self, place: Entry) -> CommandStatus:
        sequence, position, token, _ = place
        if len(self.sequences.get(sequence, ())) != position or sequence not in self.sequences:
            return CommandStatus.SLOT_MISMATCH
        if token >= self.sizes.vocabulary or position >= self.sizes.context:
            return CommandStatus.RANGE
        if position % self.sizes.page_tokens == 0:
            if not self.free_pages:
                return CommandStatus.CAPACITY
            self._take_page(sequence)
        self.sequences[sequence].append(token)
        return CommandStatus(0)

    def _choose(self, places: Sequence[Entry]) -> None:
        for sequence, position, _, sampling in places:
            history = self.sequences.get(sequence, [])[: position + 1]
            self._queues["READBACK"].append(next_id(history, sampling, self.sizes.vocabulary))
