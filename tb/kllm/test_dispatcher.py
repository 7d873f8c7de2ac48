"""KllmDispatcher against a model of queues: random commands, faults, waits and aborts.

Shown to fail:

- waits compared without their modulus;
- waits for one command fewer;
- a release that does not wait, or that an abort does not change;
- a command of MATMUL that leaves the queue before its release was taken;
- a faulty command that overtakes those before it;
- queued commands that an abort forgets;
- ABORTED in place of a fault;
- an incomplete command kept;
- an abort that ends while words are offered;
- bits after the waits unseen;
- one bit next to the operands of one command unseen (``every_bit_that_must_be_zero`` alone);
- bit 10 of a count of MATMULs that does not carry (``waits_wrap`` alone);
- unknown opcodes counted;
- a command that leans while one of its unit runs, or on one that leans;
- a command that leans on one that is not the eldest, or not certain;
- a command that leans and waits for another unit too;
- a status that does not wait for the command leaned on, or that waits for the next one too;
- ``idle`` while a command is checked;
- MATMUL at work from its early start on, or only once its release was taken;
- a unit at work from its queue on, or not while its status waits.
"""

import dataclasses
import random

import pytest

from golden.kllm.config import MACHINES
from golden.kllm.engines import screen
from golden.kllm.isa import COMMAND_WORDS, COMMANDS, CommandStatus, Opcode, Unit, encode
from golden.kllm.machine import Machine
from hdl.kllm.dispatcher import KllmDispatcher, KllmDispatcherConfig
from tb.simulate.run import simulate

UNITS = list(Unit)
CONFIGS = {
    "table1": KllmDispatcherConfig(),
    "smallest": KllmDispatcherConfig(queue=3, running=1),
    "odd": KllmDispatcherConfig(queue=5, running=3),
    "cache": KllmDispatcherConfig(units=len(Unit), counts=True),
    "ahead": KllmDispatcherConfig(ahead=True, counts=True),
    "ahead_odd": KllmDispatcherConfig(
        ahead=True, queue=3, running=1, units=len(Unit), counts=True
    ),
}


@pytest.mark.telling("smallest", "odd", "cache", "ahead")
@pytest.mark.parametrize("name", CONFIGS)
def test_dispatcher(name, seed):
    config = CONFIGS[name]
    params = {"commands": 150, "aborts": 90}
    params["exhaustive"] = name in ("table1", "cache")
    simulate(KllmDispatcher(config), "tb.kllm.tb_dispatcher", params=params, seed=seed)


def random_words(rng) -> list[int]:
    """Words near a command: one that is right, with a bit flipped now and then."""
    opcode = rng.choice(list(Opcode))
    operands = {each.name: rng.getrandbits(each.bits) for each in COMMANDS[opcode].operands}
    after = {unit: rng.choice([0, 1, 5, 6, 32773, 32774, 65535]) for unit in rng.sample(UNITS, 2)}
    words = encode(opcode, rng.getrandbits(16), after, operands)
    if rng.random() < 0.4:
        words[rng.choice([0, rng.randrange(COMMAND_WORDS)])] ^= 1 << rng.randrange(32)
    return words


@pytest.mark.parametrize("batch", [0, 2])
def test_screen_agrees_with_the_machine(batch):
    """Same faults as golden.kllm.machine, whose other faults come after these."""
    rng = random.Random(11)
    config = dataclasses.replace(MACHINES["small"], batch=batch)
    seen = set()
    for _ in range(600):
        machine = Machine(config)
        machine.issued = dict.fromkeys(UNITS, 5)
        words = random_words(rng)
        unit, fault = screen(words, [5] * config.units)
        result = machine.step(words)
        assert result.unit == (unit or Unit.LOAD)
        screened = result.status & (CommandStatus.MALFORMED | CommandStatus.DEPENDENCY)
        assert screened == fault, words
        counted = sum(machine.issued.values()) - 5 * len(UNITS)
        assert counted == (unit is not None)
        seen.add((unit is None, fault))
    assert len(seen) == 4
