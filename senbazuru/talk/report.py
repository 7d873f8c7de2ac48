"""The cost of a pass: cycles of each unit and command, next to their bounds and to a prediction."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from golden.kllm.bounds import Rates, ahead_max, bounds, product_cycles, schedule
from golden.kllm.config import MachineConfig
from golden.kllm.isa import COMMAND_ROWS, COMMAND_WORDS, MatmulMode, Opcode, Unit, decode
from golden.kllm.model.program import PassProgram
from golden.kllm.timing import dispatcher
from hdl.kllm.accelerator import KllmAcceleratorConfig
from hdl.kllm.fetch import KllmFetchConfig
from senbazuru.runs.layer import measured_cycles
from senbazuru.talk.driver import ProgramRun, StepRun
from sim.engine import engine_of
from sim.kllm.schedule import timeline
from sim.kllm.units import OUTLIERS, CommandCycles, Outliers, Timings, Units

CONTROLLER = "kllm-a4"  # the chip of sim/hardware whose constants say how fast a controller is


@dataclasses.dataclass(frozen=True)
class HostPace:
    """Cycles from one command to the next, and from one word to the next, as ``Timings``."""

    command: int
    poll: int


# main.cpp writes and reads a word in every cycle. The dispatcher takes a command less often.
HOST = HostPace(int(dispatcher(COMMAND_WORDS).interval), 1)

# The cocotb bench's own host: the defaults of Timings.
BENCH = HostPace(Timings.command, Timings.poll)


def controller() -> HostPace:
    """A controller on the chip that drives AXI4-Lite, by the constants of ``CONTROLLER``."""
    found = engine_of(CONTROLLER)
    return HostPace(int(found.base("command")), int(found.base("poll")))


@dataclasses.dataclass(frozen=True)
class Limits:
    """Cycles of a pass if one resource worked in each of them. Neither can be faster.

    ports : words that each weight port gives, one per cycle
    lanes : products of all MATMULs over the products that the lanes form per cycle
    """

    ports: int
    lanes: float


def limits(program: PassProgram, machine: MachineConfig) -> Limits:
    """The limits of a pass."""
    return limits_of(program.words, machine)


def limits_of(commands: Sequence[int], machine: MachineConfig) -> Limits:
    """Counts words of each MATMUL, and cycles of its products."""
    words = 0
    for first in range(0, len(commands), COMMAND_WORDS):
        opcode, _, _, o = decode(list(commands[first : first + COMMAND_WORDS]))
        if opcode == Opcode.MATMUL:
            words += machine.image_words(o["length"], o["outputs"])
    return Limits(words, product_cycles(commands, machine))


@dataclasses.dataclass(frozen=True)
class Placed:
    """A command at work, in cycles of the pass."""

    unit: str
    opcode: str
    begin: int
    end: int


@dataclasses.dataclass
class Figures:
    """cycles : of the pass

    bound : each unit doing its commands one by one; ahead: the same with weights that come before
        their MATMUL
    units : name to cycles that it was at work
    commands : name to their number, cycles at work, their bound, and lanes and ports of ``Limits``
    placed : every command
    """

    cycles: int
    bound: int
    ahead: int
    units: dict[str, int]
    commands: dict[str, list[float]]
    placed: list[Placed]

    def describe(self) -> dict[str, object]:
        """The figures that a session keeps: all but the commands one by one."""
        return {name: value for name, value in vars(self).items() if name != "placed"}


def rates(config: KllmAcceleratorConfig) -> Rates:
    return Rates(
        macs=None if config.build.counter == "select" else config.lane.macs,
        function_width=config.width,
        integer_lanes=config.quantizer_config.integer_lanes,
        functions=config.functions,
        packet_words=config.lane.packet_words,
    )


def figures(program: PassProgram, run: ProgramRun, config: KllmAcceleratorConfig) -> Figures:
    """The figures of a pass that ended."""
    words, issued = program.words, dict.fromkeys(Unit, 0)
    found = bounds(words, config.machine, rates(config))
    reports = [
        [word >> 16, word >> 13 & 7, when]
        for word, when in zip(run.status.tolist(), run.at.tolist(), strict=True)
    ]
    took = measured_cycles(words, reports, issued)
    done = {tag: when for tag, _, when in reports}
    bound, ahead = (
        schedule(words, found, issued, most, config.ahead).cycles
        for most in (0, ahead_max(config.machine))
    )
    made = Figures(run.cycles, bound, ahead, {unit.name: 0 for unit in Unit}, {}, [])
    for number, each in enumerate(found):
        command = words[number * COMMAND_WORDS : (number + 1) * COMMAND_WORDS]
        name, alone = _name(each.opcode, command), limits_of(command, config.machine)
        cycles, end = took[each.tag], done[each.tag]
        made.units[each.unit.name] += cycles
        sums = made.commands.setdefault(name, [0, 0, 0, 0, 0])
        for n, amount in enumerate((1, cycles, each.cycles, alone.lanes, alone.ports)):
            sums[n] += amount
        made.placed.append(Placed(each.unit.name, name, end - cycles, end))
    return made


def step_figures(words: Sequence[int], done: StepRun, config: KllmAcceleratorConfig) -> Figures:
    """The figures of a step that ended; the host sees no command of it, the chip counts units."""
    found = bounds(words, config.machine, rates(config))
    made = Figures(done.cycles, 0, 0, dict(done.units), {}, [])
    for most, field in ((0, "bound"), (ahead_max(config.machine), "ahead")):
        setattr(made, field, schedule(words, found, dict.fromkeys(Unit, 0), most).cycles)
    return made


def _name(opcode: Opcode, words: Sequence[int]) -> str:
    """The command; of MATMUL its mode too."""
    if opcode != Opcode.MATMUL:
        return opcode.name
    return f"MATMUL {MatmulMode(decode(list(words))[3]['mode']).name}"


def check_cycles(commands: int, latency: int) -> int:
    """Cycles of RUN that reads a program once more first, to compare its check word.

    A read has ``KllmFetchConfig.chunk`` commands, and two are under way.
    """
    chunk = KllmFetchConfig.chunk
    rows = COMMAND_ROWS * chunk
    return round(-(-commands // chunk) * max(rows, (latency + rows + 6) / 2))


def predicted(
    program: PassProgram, config: KllmAcceleratorConfig, latency: int, host: HostPace = HOST,
    outliers: Outliers = OUTLIERS,
) -> int:  # fmt: skip
    """Cycles that the system simulator says; outliers: as ``CommandCycles`` has them."""
    context = program.job.context
    return _timed(program.words, config, latency, host, context=context, outliers=outliers)


def predicted_step(
    words: Sequence[int], config: KllmAcceleratorConfig, latency: int, lengths: Sequence[int],
    outliers: Outliers = OUTLIERS,
) -> int:  # fmt: skip
    """The same of a step; lengths: tokens that each place attends to."""
    return _timed(words, config, latency, HOST, lengths=lengths, outliers=outliers)


def _timed(
    words: Sequence[int], config: KllmAcceleratorConfig, latency: int, host: HostPace,
    **attended: Any,
) -> int:  # fmt: skip
    """attended: as ``CommandCycles`` has it."""
    timings = Timings.fitted(latency=latency, command=host.command, poll=host.poll)
    cycles = CommandCycles(config.machine, simulated(config), timings, **attended)
    return round(timeline(words, cycles, dict.fromkeys(Unit, 0)).cycles)


def simulated(config: KllmAcceleratorConfig) -> Units:
    """The accelerator as the simulator has it."""
    return Units(
        counter=config.build.counter, macs=config.build.macs, function_width=config.width,
        functions=config.functions, queue=config.queue, packet_words=config.lane.packet_words,
        cache_bits=config.cache.data_bits, attention_lanes=config.cache.lanes,
        attention_macs=config.cache.macs, attention_words=config.cache.token_beats,
        ahead=config.ahead, banks=config.banks,
    )  # fmt: skip


def predicted_by_host(
    program: PassProgram, config: KllmAcceleratorConfig, latency: int
) -> tuple[int, int, int]:
    """``predicted`` for main.cpp, for a controller, and for the host of the cocotb bench."""
    free, slower, bench = (
        predicted(program, config, latency, host) for host in (HOST, controller(), BENCH)
    )
    return free, slower, bench
