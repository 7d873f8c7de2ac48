"""The words that a kit's testbench sends and expects: golden words, in episodes.

``hdl.kit.rooms`` makes them of the words of ``golden.<room>.vectors``. ``hdl.kit.testbench`` writes
them as files.
"""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """Beats of a memory at ``low <= address < high`` get ``response``, and are not written."""

    low: int  # byte address
    high: int  # byte address
    response: int  # code of AXI: 2 is SLVERR, 3 is DECERR


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """Words that the testbench sends, and the words that must come, all of them.

    The next episode starts when every word has moved, the ``outputs`` have their values, and
    nothing more has come for some cycles.
    A stream that ``words`` leaves out moves nothing.
    """

    name: str  # what the episode covers, for the reader of the kit
    words: Mapping[str, Sequence[int]]  # stream -> payloads, of sources and sinks alike
    masks: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)  # compared bits
    ports: Mapping[str, int] = dataclasses.field(default_factory=dict)  # inputs, constant
    outputs: Mapping[str, int] = dataclasses.field(default_factory=dict)  # at the episode's end
    faults: Mapping[str, Fault] = dataclasses.field(default_factory=dict)  # by bus
    reset: bool = False  # the testbench resets the block before it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """A memory of the testbench that answers an AXI4 manager."""

    bus: str  # member of the block, such as "axi"
    low: int  # byte address of its first word, a multiple of the word
    words: int  # an access beyond them fails
    image: Mapping[int, int] = dataclasses.field(default_factory=dict)  # word's number -> word
    final: Sequence[int] = ()  # all words after the last episode; empty: they are not compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors:
    """Everything that the testbench of one block needs.

    ``golden`` names the function that the expected words come from.
    """

    episodes: Sequence[Episode]
    memories: Sequence[Memory] = ()
    golden: str = ""
