"""A Verilated chip whose traffic to the pages is checked by ``owners.Owners``, step by step.

``TappedChip`` is between a host and the chip, and sees each word of a register. ``WatchedChip``
gives what it sees to ``Owners``. ``Registers`` is a host without a scheduler: a test says which
place has which token.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from golden.axi.format import CACHE_REGISTERS, REGISTERS
from golden.kllm.cache import Place
from golden.kllm.engines import batch_table, request_of
from golden.kllm.isa import (
    COMMAND_WORDS,
    FAILED,
    HEADER_ROWS,
    ROW_BYTES,
    RUN_CHECKS,
    RUN_UNIT,
    CommandStatus,
    Opcode,
    decode,
)
from golden.paging.format import Op, Status
from senbazuru.host.engine import Chip, HostError, VerilatedChip, header
from senbazuru.host.owners import Access, CacheCommand, Oracle, Owners

_OFFSETS = {name: each.offset for name, each in (REGISTERS | CACHE_REGISTERS).items()}
_NAMES = {offset: name for name, offset in _OFFSETS.items()}
_OK, _NOTHING, _CHIP = (header.constants[f"SZR_{name}"] for name in ("OK", "NOTHING", "CHIP"))
_PASS = 1 << 32
_POISON = 0xA5


def cache_commands(program: bytes) -> list[CacheCommand]:
    """The commands of the unit CACHE among those of golden.kllm.fetch.program_image."""
    words = np.frombuffer(program[HEADER_ROWS * ROW_BYTES :], dtype="<u4").tolist()
    found = []
    for at in range(0, len(words), COMMAND_WORDS):
        opcode, _, _, o = decode(words[at : at + COMMAND_WORDS])
        if opcode in (Opcode.APPEND, Opcode.ATTEND):
            command = CacheCommand(opcode, o["tokens"], o["layer"], o.get("kv", 0), o["place"])
            found.append(command)
    return found


def is_done(result: int) -> bool:
    """Whether a RESULT says that all is done."""
    return result >> 13 & 7 == RUN_UNIT and not result & 0x1FFF & FAILED


class TappedChip(Chip):
    """A chip that sees what its host writes and reads.

    tamper : changes a word before the chip gets it: (register, word) -> word
    during : is called before each read of RESULT that gives nothing
    programs : the bytes that the host wrote, by their first row
    batch : the places as they are; stored: rows that were written since the last step
    failure : the first exception of a function below; the chip gives errors from there on
    """

    def __init__(self, chip: VerilatedChip, places: int) -> None:
        self.chip, self.places = chip, places
        self.tamper: Callable[[str, int], int] = lambda _name, word: word
        self.during: Callable[[], None] = lambda: None
        self.failure: Exception | None = None
        self.programs: dict[int, bytes] = {}
        self.batch: list[Place | None] = [None] * places
        self.stored: set[int] = set()
        self._row = 0
        self._words: dict[str, list[int]] = {"REQUEST": [], "BATCH": []}
        self._asked: list[dict[str, Any]] = []
        self._inner = chip.backend
        functions = {
            name: kind(self._kept(getattr(self, f"_{name}")))
            for name, kind in header.structures["szr_backend"]._fields_
            if name in ("write", "read", "write_data", "reset")
        }
        functions |= {name: getattr(self._inner, name) for name in ("wait", "cycle")}
        self._functions = functions  # the backend does not keep them
        self.backend = header.structures["szr_backend"](chip=self._inner.chip, **functions)

    @property
    def why(self) -> str:
        return str(self.failure or self.chip.why)

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self.failure:
            raise self.failure

    @property
    def cycle(self) -> int:
        """The present one of the chip."""
        return int(self._inner.cycle(self._inner.chip))

    # What a subclass does with it.

    def opened(self, sequence: int) -> None:
        pass

    def freed(self, sequence: int) -> None:
        pass

    def forked(self, parent: int, child: int | None) -> None:
        """child: None where the FORK failed."""

    def ended(self, row: int, result: int) -> None:
        """A step of the program in ``row`` has a RESULT."""

    def restarted(self) -> None:
        pass

    # The backend.

    def abort(self) -> None:
        """Writes CONTROL, as another part of a host may while one waits for RESULT."""
        code = self._inner.write(self._inner.chip, _OFFSETS["CONTROL"], 1)
        assert not code

    def _kept(self, function: Callable[..., int]) -> Callable[..., int]:
        """No exception leaves a function that C calls."""

        def call(*arguments: Any) -> int:
            if self.failure:
                return _CHIP
            try:
                return function(*arguments)
            except Exception as found:
                self.failure = found
                return _CHIP

        return call

    def _write(self, chip: int, offset: int, word: int) -> int:
        name = _NAMES[offset]
        code = self._inner.write(chip, offset, self.tamper(name, word))
        if code:
            return code
        if name == "RUN":
            self._row = word & (RUN_CHECKS - 1)
        elif name in self._words:
            self._words[name].append(word)
            (self._take_request if name == "REQUEST" else self._take_batch)()
        return code

    def _take_request(self) -> None:
        words = self._words["REQUEST"]
        if len(words) == 4:
            self._asked.append(request_of(words))
            words.clear()

    def _take_batch(self) -> None:
        words = self._words["BATCH"]
        if len(words) == (5 if words[0] >> 9 & 1 else 3):
            place = words[0] & 0xFF
            entry = batch_table(words, self.places)[place]
            self.batch[place] = Place(*entry) if entry else None
            words.clear()

    def _read(self, chip: int, offset: int, to: Any) -> int:
        code = self._inner.read(chip, offset, to)
        name = _NAMES[offset]
        if name == "RESULT" and code == _NOTHING:
            self.during()
        if code:
            return code
        if name == "ANSWER":
            self._take_answer(to[0])
        elif name == "RESULT":
            self.ended(self._row, to[0])
            self.stored.clear()
        return code

    def _take_answer(self, word: int) -> None:
        asked = self._asked.pop(0)
        is_good = word >> 8 & 0xF == Status.OK
        if asked["op"] == Op.FORK:
            self.forked(asked["sequence"], word >> 16 & 0xFF if is_good else None)
        if not is_good:
            return
        if asked["op"] == Op.OPEN:
            self.opened(word >> 16 & 0xFF)
        elif asked["op"] == Op.FREE:
            self.freed(asked["sequence"])

    def _write_data(self, chip: int, address: int, source: int, size: int) -> int:
        row = address // ROW_BYTES
        self.programs[row] = ctypes.string_at(source, size)
        self.stored.add(row)
        return self._inner.write_data(chip, address, source, size)

    def _reset(self, chip: int) -> int:
        self.batch = [None] * self.places
        self._words = {name: [] for name in self._words}
        self._asked.clear()
        code = self._inner.reset(chip)
        self.restarted()
        return code


class WatchedChip(TappedChip):
    """Its traffic to the pages goes through ``owners``; the pages are of one engine."""

    def __init__(self, chip: VerilatedChip, owners: Owners, places: int, engine: int = 0) -> None:
        super().__init__(chip, places)
        self.owners, self.engine = owners, engine
        self._commands: dict[bytes, list[CacheCommand]] = {}
        chip.watch(engine)

    def opened(self, sequence: int) -> None:
        self.owners.open(sequence)

    def freed(self, sequence: int) -> None:
        self.poison(self.owners.free(sequence))

    def forked(self, parent: int, child: int | None) -> None:
        self.owners.fork(parent, child, accesses_of(self.chip.accesses()))

    def ended(self, row: int, result: int) -> None:
        program = self.programs[row]
        if program not in self._commands:
            self._commands[program] = cache_commands(program)
        pages = self.chip.pages(0, self.owners.size, self.engine)
        memory = np.frombuffer(pages, dtype=np.uint8)
        accesses = accesses_of(self.chip.accesses())
        self.owners.step(self.batch, self._commands[program], accesses, memory, is_done(result))

    def restarted(self) -> None:
        self.chip.accesses()
        self.owners.reset()
        self.poison(range(self.owners.config.pages))

    def poison(self, pages: Iterable[int]) -> None:
        """Bytes that nobody may see any more are others now: who used one would differ."""
        size = self.owners.config.page_bytes
        for page in pages:
            self.chip.set_pages(page * size, bytes([_POISON]) * size, self.engine)

    def damage(self, address: int, data: bytes) -> None:
        """Changes bytes of a sequence in the memory, as if it had kept them so."""
        self.chip.set_pages(address, data, self.engine)
        self.owners.wanted[address : address + len(data)] = list(data)


class Registers:
    """A host that does what a test says, and repeats nothing.

    programs : words of a program by tokens and choosing places
    """

    def __init__(
        self, chip: WatchedChip, thresholds: Sequence[Sequence[Sequence[int]]],
        image: Callable[[int, int], bytes], row: int,
    ) -> None:  # fmt: skip
        self.chip, self.image, self.row = chip, image, row
        self._stored: dict[tuple[int, int], int] = {}
        for layer, sides in enumerate(thresholds):
            for kv, words in enumerate(sides):
                pairs = [words[n] | words[n + 1] << 16 for n in (0, 2)]
                self.request(Op.THRESHOLDS, layer=layer, kv=kv, pairs=pairs)

    def write(self, name: str, word: int) -> None:
        backend = self.chip.backend
        while code := backend.write(backend.chip, _OFFSETS[name], word):
            self._wait(code)

    def read(self, name: str, tries: int = _PASS) -> int | None:
        backend, word = self.chip.backend, ctypes.c_uint32()
        for _ in range(tries):
            code = backend.read(backend.chip, _OFFSETS[name], ctypes.byref(word))
            if not code:
                return word.value
            self._wait(code)
        return None

    def _wait(self, code: int) -> None:
        self.chip.check()
        if code == _NOTHING:
            backend = self.chip.backend
            code = backend.wait(backend.chip)
        if code:
            raise HostError(code, self.chip.why)

    def request(
        self, op: Op, sequence: int = 0, layer: int = 0, kv: int = 0, pairs: Sequence[int] = (0, 0)
    ) -> tuple[int, Status]:
        """The sequence of the answer, and its status."""
        for word in (op | sequence << 16 | layer << 24, kv << 31, *pairs):
            self.write("REQUEST", word)
        answer = self.read("ANSWER")
        self.chip.check()
        assert answer is not None
        return answer >> 16 & 0xFF, Status(answer >> 8 & 0xF)

    def open(self) -> int:
        sequence, status = self.request(Op.OPEN)
        assert status == Status.OK
        return sequence

    def free(self, sequence: int) -> None:
        assert self.request(Op.FREE, sequence)[1] == Status.OK

    def step(self, places: Sequence[tuple[int, int, int]], choosing: int) -> tuple[int, list[int]]:
        """RESULT and the ids; places: sequence, position and token of each; the last choose."""
        key = len(places), choosing
        backend = self.chip.backend
        if key not in self._stored:
            made = self.image(*key)
            code = backend.write_data(backend.chip, self.row * ROW_BYTES, made, len(made))
            assert not code
            self._stored[key], self.row = self.row, self.row + len(made) // ROW_BYTES
        for number, (sequence, position, token) in enumerate(places):
            for word in (number | 1 << 8 | sequence << 16, position, token):
                self.write("BATCH", word)
        self.write("RUN", self._stored[key])
        result = self.read("RESULT")
        self.chip.check()
        assert result is not None
        ids: list[int] = []
        while len(ids) < choosing and (found := self.read("READBACK", 64)) is not None:
            ids.append(found)
        return result, ids


def statuses(result: int) -> CommandStatus:
    """The bits of a RESULT of a command."""
    return CommandStatus(result & 0x1FFF)


def oracle_of(records: dict[tuple[tuple[int, ...], int, int], list[bytes]]) -> Oracle:
    """The records by tokens, layer, and K or V."""
    return lambda tokens, layer, kv: records.get((tokens, layer, kv))


def accesses_of(found: Sequence[Any]) -> list[Access]:
    """Words of ``szr_verilated_accesses``."""
    return [
        Access(
            each.cycle, each.address,
            tuple(n for n in range(64) if each.strobe >> n & 1) if each.is_write else (),
            bool(each.is_write), bool(each.is_error),
        )
        for each in found
    ]  # fmt: skip
