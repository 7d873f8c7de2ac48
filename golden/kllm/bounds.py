"""Cycles that a program takes at least, command by command: what its report compares with.

    LOAD          rows; LOAD_AT those of all tokens
    QUANTIZE      each row twice (OFFLINE once), as V gives a row per cycle; QUANTIZE_INTEGER
                  also 16 / integer_lanes cycles per row of its second pass
    MATMUL        the largest of: port words / ports; per job (group and token) the beats, in
                  integer mode their digits, the words that the reducers (if any) and the outlier
                  path take; columns outputs
    FUNCTION      tokens * length / function_width; SOFTMAX three times that; the command FUNCTION
                  length / functions
    READ          8 words per row; READ_SLOT its words; TOP_K the rows of all tokens
    codebooks     their words or rows; of integers in rows, a cycle per row of multiples

Start-up and pipelines are left out, so are outliers that share a row. ``schedule`` places the
commands by their waits, each unit doing one command at a time: the program's bound, and what
overlaps. Weights may come before their MATMUL starts, about as many as the replay buffers hold:
``ahead_max``.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from golden.kllm.config import MachineConfig
from golden.kllm.format import beats, groups, integer_digits
from golden.kllm.isa import (
    COMMAND_WORDS,
    COMMANDS,
    ROW_ELEMENTS,
    Codebook,
    MatmulMode,
    Opcode,
    OutlierMode,
    Scalar,
    Unit,
    decode,
)


@dataclasses.dataclass(frozen=True)
class Rates:
    """The numbers that a bound depends on, in addition to the MachineConfig.

    macs: of a lane's reducer, None: a lane that selects has none; function_width: elements per
    cycle of the functional unit; integer_lanes: quotients per cycle of QUANTIZE_INTEGER;
    functions: elements per cycle of FUNCTION; packet_words: of LANE_CODEBOOK per cycle.
    """

    macs: int | None = None
    function_width: int = 8
    integer_lanes: int = 4
    functions: int = 1
    packet_words: int = 1


Operands = Mapping[str, int]
Cycles = tuple[int, str]  # and what takes them
Count = Callable[[Operands, MachineConfig, Rates], Cycles]


@dataclasses.dataclass(frozen=True)
class Bound:
    """cycles: of one command; limit: what takes them.

    words: port words of a MATMUL's weights, per port; compute: its cycles if they were there.
    """

    opcode: Opcode
    unit: Unit
    tag: int
    cycles: int
    limit: str
    words: int = 0
    compute: int = 0


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _matmul(o: Operands, config: MachineConfig, rates: Rates) -> Cycles:
    return _of_matmul(o, config, rates)[0]


def _of_matmul(o: Operands, config: MachineConfig, rates: Rates) -> tuple[Cycles, int, int]:
    """The bound, then Bound's ``words`` and ``compute``."""
    words = config.image_words(o["length"], o["outputs"])
    compute, limit = _lanes(o, config, rates)
    bound = (words, "weights") if words > compute else (compute, limit)
    return bound, words, compute


def _lanes(o: Operands, config: MachineConfig, rates: Rates) -> Cycles:
    """Returns the cycles of a MATMUL whose weights are there, and what limits it."""
    tokens, length = o["tokens"], o["length"]
    count = groups(o["outputs"], config.group_outputs)
    jobs = count * tokens
    digits, reduce = 1, 0
    if rates.macs is None:
        if o["mode"] == MatmulMode.INTEGER:
            digits = integer_digits(config.integer_bits, config.bits_a)
    elif o["mode"] != MatmulMode.DIRECT:
        bins = 1 << config.bits_b
        if o["mode"] == MatmulMode.KMEANS:
            bins <<= config.bits_a
        reduce = _ceil(config.columns * bins, rates.macs)
    per_job = {
        "beats": digits * beats(length, config.elements),
        "reducing": reduce,
        "outputs": config.columns,
        "outliers": length if o["mode"] == MatmulMode.DIRECT else 0,
    }
    limit = max(per_job, key=lambda name: per_job[name])
    return jobs * per_job[limit], limit


def _rows(o: Operands) -> int:
    return max(o["tokens"], 1) * _ceil(o["length"], ROW_ELEMENTS)


def _quantize(o: Operands, _config: MachineConfig, _rates: Rates) -> Cycles:
    return _rows(o) * (1 if o["mode"] == OutlierMode.OFFLINE else 2), "rows"


def _quantize_integer(o: Operands, _config: MachineConfig, rates: Rates) -> Cycles:
    rows = _rows(o)
    divided = rows // max(o["tokens"], 1) + rows * _ceil(ROW_ELEMENTS, rates.integer_lanes)
    return max(2 * rows, divided), "rows"


def _lane_codebook(o: Operands, config: MachineConfig, rates: Rates) -> Cycles:
    kmeans = o["kind"] == Codebook.KMEANS
    if rates.packet_words == 1:
        return config.kmeans_words if kmeans else config.integer_words, "words"
    # The row of an Integer packet makes a row of multiples per cycle.
    return _ceil(config.kmeans_words, rates.packet_words) if kmeans else 1 << config.bits_a, "rows"


def _elementwise(passes: int = 1, width_max: int | None = None) -> Count:
    def count(o: Operands, _config: MachineConfig, rates: Rates) -> Cycles:
        width = min(rates.function_width, width_max or rates.function_width)
        return passes * max(o.get("tokens", 1), 1) * _ceil(o["length"], width), "elements"

    return count


def _rotary(o: Operands, _config: MachineConfig, rates: Rates) -> Cycles:
    return _ceil(o["heads"] * o["head_size"], rates.function_width), "elements"


def _rows_read(opcode: Opcode) -> Count:
    """The rows that the command reads. ATTEND does not say how many tokens are cached."""

    def count(o: Operands, config: MachineConfig, _rates: Rates) -> Cycles:
        return sum(rows for _, rows in COMMANDS[opcode].access(o, config).reads("rows")), "rows"

    return count


# Cycles of each command at least, and what takes them.
CYCLES: dict[Opcode, Count] = {
    Opcode.LOAD: lambda o, _config, _rates: (o["rows"], "rows"),
    Opcode.LOAD_AT: lambda o, _config, _rates: (o["tokens"] * o["rows"], "rows"),
    Opcode.ACTIVATION_CODEBOOK: lambda _o, config, _rates: ((1 << config.bits_a) - 1, "words"),
    Opcode.QUANTIZE: _quantize,
    Opcode.QUANTIZE_INTEGER: _quantize_integer,
    Opcode.LANE_CODEBOOK: _lane_codebook,
    Opcode.MATMUL: _matmul,
    Opcode.WEIGHT_BASE: lambda _o, _config, rates: (1 if rates.packet_words > 1 else 2, "words"),
    Opcode.BINARY: _elementwise(),
    Opcode.AXPY: _elementwise(),
    Opcode.ROTARY: _rotary,
    Opcode.SOFTMAX: _elementwise(passes=3),
    Opcode.FUNCTION: lambda o, _config, rates: (_ceil(o["length"], rates.functions), "elements"),
    Opcode.FUNCTION_CODEBOOK: lambda _o, _config, _rates: (1, "rows"),
    Opcode.ACTIVATE: _elementwise(),
    Opcode.GLU: _elementwise(width_max=8),
    Opcode.READ: lambda o, _config, _rates: (8 * o["rows"], "rows"),
    Opcode.READ_SLOT: lambda _o, _config, _rates: (4, "words"),  # its head; the slot has the length
    Opcode.TOP_K: _rows_read(Opcode.TOP_K),
    Opcode.APPEND: _rows_read(Opcode.APPEND),
    Opcode.ATTEND: _rows_read(Opcode.ATTEND),
}


def bounds(words: Sequence[int], config: MachineConfig, rates: Rates | None = None) -> list[Bound]:
    """One bound per command. ValueError: words that are no commands."""
    rates = rates or Rates()
    found = []
    for first in range(0, len(words), COMMAND_WORDS):
        opcode, tag, _, operands = decode(list(words[first : first + COMMAND_WORDS]))
        words_wanted = compute = 0
        if opcode == Opcode.MATMUL:
            (cycles, limit), words_wanted, compute = _of_matmul(operands, config, rates)
        else:
            cycles, limit = CYCLES[opcode](operands, config, rates)
        found.append(
            Bound(opcode, COMMANDS[opcode].unit, tag, cycles, limit, words_wanted, compute)
        )
    return found


def ahead_max(config: MachineConfig) -> int:
    """Port words, per port, that the replay buffers hold: an estimate of what comes ahead.

    The queues of the lanes, the scales of two groups and the stages between them hold more.
    """
    return _ceil(config.replay_beats * config.beat_words, config.ports.ports)


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A command and what it waits for, as numbers of commands of the same part.

    after : its unit's command before it, if any, then those of its waits
    """

    opcode: Opcode
    tag: int
    operands: Operands
    after: tuple[int, ...]


def waits(words: Sequence[int], first: Mapping[Unit, int]) -> list[Waiting]:
    """Each command of a part. first: commands of each unit that were complete before the part.

    ValueError: words that are no commands.
    """
    mine: dict[Unit, list[int]] = {unit: [] for unit in Unit}
    found = []
    for number, at in enumerate(range(0, len(words), COMMAND_WORDS)):
        opcode, tag, counts, operands = decode(list(words[at : at + COMMAND_WORDS]))
        own = mine[COMMANDS[opcode].unit]
        after = own[-1:]
        for unit, count in counts.items():
            waited = count - first[unit]
            if 0 < waited <= len(mine[unit]):
                after = [*after, mine[unit][waited - 1]]
        found.append(Waiting(opcode, tag, operands, tuple(after)))
        own.append(number)
    return found


def waited(after: Iterable[int], ends: Sequence[float]) -> float:
    """The end of the last command that one waits for; 0 where it waits for none."""
    return max((ends[number] for number in after), default=0)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """start, end: cycle of each command; busy: cycles of each unit; cycles: of the program."""

    start: list[int]
    end: list[int]
    busy: dict[Unit, int]

    @property
    def cycles(self) -> int:
        return max(self.end, default=0)


# A unit whose commands may lean on a certain command of the other one (decision 0329).
LEANS = {Unit.FUNCTION: Unit.MATMUL, Unit.QUANTIZE: Unit.FUNCTION}


def leans_on(commands: Sequence[Waiting], number: int) -> int | None:
    """The command that one may lean on: the latest that it waits for of one unit, if certain."""
    this = commands[number]
    other = LEANS.get(COMMANDS[this.opcode].unit)
    on = max((n for n in this.after if COMMANDS[commands[n].opcode].unit == other), default=None)
    return on if on is not None and is_certain(commands[on]) else None


def is_certain(command: Waiting) -> bool:
    """Whether others may lean on a command while it runs: one token, of a slot or of rows."""
    o = command.operands
    if command.opcode == Opcode.MATMUL:
        return o["tokens"] == 1 and o["mode"] != MatmulMode.DIRECT
    if command.opcode == Opcode.AXPY:
        return o["scalar"] == Scalar.IMMEDIATE
    is_binary = command.opcode == Opcode.BINARY and o["tokens"] == 1
    return is_binary or command.opcode == Opcode.FUNCTION


def schedule(
    words: Sequence[int],
    found: Sequence[Bound],
    first: dict[Unit, int],
    ahead: int = 0,
    leans: bool = False,
) -> Schedule:
    """Each command as early as its unit and its waits let it, for the cycles of ``found``.

    first: commands of each unit that were complete before this part of a program. ahead: at most so
    many port words of a MATMUL come before its start. The ports serve one MATMUL after another.
    leans: commands begin with those that they lean on, and end no earlier.
    """
    starts: list[int] = []
    finish: list[int] = []
    served = 0  # the ports' words of the MATMULs before
    commands = waits(words, first)
    for number, (bound, command) in enumerate(zip(found, commands, strict=True)):
        on = leans_on(commands, number) if leans else None
        begin = int(waited((n for n in command.after if n != on), finish))
        end = begin + bound.cycles
        if on is not None:
            begin = max(begin, starts[on])
            end = max(begin + bound.cycles, finish[on])
        if bound.opcode == Opcode.MATMUL:
            served = max(served, begin - ahead) + bound.words
            end = max(begin + bound.compute, served)
        starts.append(begin)
        finish.append(end)
    busy = dict.fromkeys(Unit, 0)
    for bound in found:
        busy[bound.unit] += bound.cycles
    return Schedule(starts, finish, busy)


def product_cycles(words: Sequence[int], config: MachineConfig) -> float:
    """Cycles of the products of a program's MATMULs if every lane forms as many as it can."""
    products = 0
    for first in range(0, len(words), COMMAND_WORDS):
        opcode, _, _, o = decode(list(words[first : first + COMMAND_WORDS]))
        if opcode == Opcode.MATMUL:
            products += o["tokens"] * o["length"] * o["outputs"]
    return products / (config.lanes * config.columns * config.elements)
