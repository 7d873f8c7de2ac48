"""Codes of AXI4 and the register map, which hdl and golden share. Pure Python."""

import dataclasses
import enum

# Arm IHI 0022H: A3.4.1 (bursts and the 4 KiB rule), A3.4.4 (responses), A4.4 (memory types).
PAGE_BYTES = 4096
BURST_INCR = 0b01
CACHE_NORMAL = 0b0011  # normal, non-cacheable, bufferable
RESP_OKAY, RESP_SLVERR, RESP_DECERR = 0b00, 0b10, 0b11


class Resp(enum.IntEnum):
    """Codes of RRESP and BRESP."""

    OKAY = 0
    EXOKAY = 1  # exclusive access done
    SLVERR = 2  # the subordinate refused
    DECERR = 3  # no subordinate has the address


class Burst(enum.IntEnum):
    """Codes of ARBURST and AWBURST."""

    FIXED = 0
    INCR = 1  # each beat at the next address
    WRAP = 2


ID_WORD = 0x535A_5255  # "SZRU", the first letter in the highest byte

LEVELS_COMMAND_MOST = (1 << 16) - 1  # bits 0..15 of LEVELS
LEVELS_STATUS_MOST = (1 << 15) - 1  # bits 16..30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Register:
    """One 32-bit register: what reads and writes of it do."""

    name: str
    offset: int  # bytes
    access: str  # RO, WO: the other direction answers SLVERR; RW
    meaning: str


_MAP = (
    Register(name="ID", offset=0x00, access="RO", meaning="0x535A5255, `SZRU`"),
    Register(name="VERSION", offset=0x04, access="RO", meaning="the configuration's `version`"),
    Register(
        name="CONTROL",
        offset=0x08,
        access="RW",
        meaning="writing 1 to bit 0 gives one cycle of `abort_pulse`; bit 1 reads `idle`, "
        "the other bits read 0",
    ),
    Register(
        name="LEVELS",
        offset=0x0C,
        access="RO",
        meaning="bits 0-15: command words that fit now; bits 16-30: status words waiting, at most "
        "32767 shown; bit 31: a readback word waits",
    ),
    Register(
        name="COMMAND",
        offset=0x10,
        access="WO",
        meaning="pushes a word to `command`; when the queue is full, or with a byte strobe at 0, "
        "the word is dropped and the answer is SLVERR",
    ),
    Register(
        name="STATUS",
        offset=0x14,
        access="RO",
        meaning="pops a word of `status`; when none waits: 0 and SLVERR",
    ),
    Register(
        name="READBACK",
        offset=0x18,
        access="RO",
        meaning="pops a word of `readback`; when none waits: 0 and SLVERR",
    ),
)
REGISTERS = {register.name: register for register in _MAP}

# Those of a chip with a cache of K and V; docs/host.md has the words.
_CACHE_MAP = (
    Register(
        name="REQUEST",
        offset=0x1C,
        access="WO",
        meaning="pushes a word to `request`, as COMMAND does to `command`",
    ),
    Register(
        name="ANSWER",
        offset=0x20,
        access="RO",
        meaning="pops a word of `answer`; when none waits: 0 and SLVERR",
    ),
    Register(
        name="BATCH",
        offset=0x24,
        access="WO",
        meaning="pushes a word to `batch`, as COMMAND does to `command`",
    ),
    Register(
        name="RUN",
        offset=0x28,
        access="WO",
        meaning="pushes a word to `run`, as COMMAND does to `command`",
    ),
    Register(
        name="RESULT",
        offset=0x2C,
        access="RO",
        meaning="pops a word of `result`; when none waits: 0 and SLVERR",
    ),
)
_UNITS = ("LOAD", "QUANTIZE", "MATMUL", "FUNCTION", "READ", "CACHE")  # golden.kllm.isa.Unit
# They count on while they are read: a host takes differences.
_COUNTER_MAP = (
    Register(name="CYCLES", offset=0x30, access="RO", meaning="cycles since reset, modulo 2^32"),
    *(
        Register(
            name=f"BUSY_{unit}",
            offset=0x34 + 4 * number,
            access="RO",
            meaning=f"cycles in which {unit} was at work, modulo 2^32",
        )
        for number, unit in enumerate(_UNITS)
    ),
)
CACHE_REGISTERS = {register.name: register for register in (*_CACHE_MAP, *_COUNTER_MAP)}
COUNTERS = tuple(register.name for register in _COUNTER_MAP)


def levels_word(command_room: int, status_words: int, readback_words: int) -> int:
    """The word of LEVELS: room for commands, words waiting."""
    return (
        min(command_room, LEVELS_COMMAND_MOST)
        | min(status_words, LEVELS_STATUS_MOST) << 16
        | int(readback_words > 0) << 31
    )
