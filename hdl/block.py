"""The base of all blocks: a component whose frozen configuration is its whole identity."""

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from amaranth.lib import wiring

from golden.config import Config
from golden.isa import CommandSet
from golden.timing import Timing
from hdl.ports import split


class Operations(NamedTuple):
    """A transfer of stream ``port``, or a cycle in which ``port`` is 1, computes ``number``."""

    port: str
    number: int
    unit: str


class Tier(enum.Enum):
    """An integrator takes an IP. A part is inside of an IP and has neither page nor kit."""

    IP = "IP"
    PART = "part"


@dataclasses.dataclass(frozen=True)
class FieldOf:
    """A block has ``field`` of the default and of the named configurations of ``block``, its user.

    The file of a block cannot import that of its user, so the block says its name.
    """

    block: str
    field: str
    names: tuple[str, ...] = ()  # configurations of ``block``; empty: all


def snake_case(component: type) -> str:
    """The name of a class in lower case: ``StreamFifo`` is ``stream_fifo``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", component.__name__).lower()


class Block(wiring.Component):
    """A component that ``hdl.back.emit`` converts once per (class, configuration).

    Everything that shapes the hardware is in ``config``; two blocks of one class with equal
    configurations are one Verilog module. Subclasses set ``timing``: an attribute of the class, or
    a property where the configuration decides. What golden models, the planner or the simulator
    need too is in golden/<room>/timing.py. ``latency`` and ``throughput`` are its texts.

    Parameters
    ----------
    config : the configuration, checked
    members : name -> ``hdl.ports.In`` or ``Out``, which give shape, meaning and kind. This is the
        one list of the ports: ``python -m hdl.build NAME --ports`` prints it.
    """

    config: Config
    # The entry of a registered block (hdl.registry). It is of this class alone: none inherits it.
    name: ClassVar[str] = ""  # where it is not the name of the class in lower case
    tier: ClassVar[Tier] = Tier.IP
    golden: ClassVar[str] = ""  # "package.module:function"
    reference: ClassVar[str] = ""  # "tests/FILE.py: TEST" of golden against what is independent
    default: ClassVar[Config | None] = None  # None: by FieldOf
    configs: ClassVar[Mapping[str, Config] | FieldOf] = {}  # name -> configuration
    checked: ClassVar[str] = ""  # the configuration whose ports the page shows, if not the default
    # Where the bits of the ports do not say them: the commands and the registers of the block.
    commands: ClassVar[CommandSet | None] = None
    registers: ClassVar[Mapping[str, Any]] = {}  # name -> golden.axi.format.Register

    def __init__(self, config: Config, members: Mapping):
        config.check_parts()
        self.config = config
        plain, self.texts, self.kinds = split(members)
        super().__init__(plain)

    @property
    def timing(self) -> Timing | None:
        """Cycles of this block at its configuration."""
        return None

    @property
    def register_map(self) -> Mapping[str, Any]:
        """The registers at this configuration."""
        return type(self).registers

    @property
    def operations(self) -> Operations | None:
        """The operations by which power reports divide the energy."""
        return None

    @property
    def latency(self) -> str:
        return self.timing.latency_text if self.timing else "see docs"

    @property
    def throughput(self) -> str:
        return self.timing.throughput_text if self.timing else "see docs"
