"""One record of what a block shows: ports, streams, texts, kinds, clock and reset.

A delivery makes it once. Header, wrapper, description, tables of ports and pictures read it.
"""

import dataclasses

from amaranth.lib import data, stream, wiring

from hdl.back.emit import Port, flat_ports, implicit_ports, port_name
from hdl.block import Block
from hdl.ports import member_kind, member_text, port_shape

# name -> (role, meaning) of the ports that no member declares.
CLOCKS = {
    "clk": ("clock", "rising edge"),
    "rst": ("reset", "synchronous, active high"),
}


@dataclasses.dataclass(frozen=True)
class Face(Port):
    """A port of a signature with what the block says of it.

    role : ``stream payload``, ``stream valid``, ``stream ready``, ``structure`` or ``signal``
    meaning, kind : as ``hdl.ports`` gives them to the member, or to its stream
    signatures : (parts of ``path`` that lead to it, signature) of each along the path, outer first
    """

    role: str
    meaning: str
    shape: object
    kind: object
    signatures: tuple[tuple[int, wiring.Signature], ...]

    @property
    def stream(self) -> str:
        """The name of the stream that the port belongs to, or empty."""
        return port_name(self.path[:-1]) if self.role.startswith("stream ") else ""


@dataclasses.dataclass(frozen=True)
class Interface:
    """The ports of ``block``, in the order of its signature, after those of ``clocked``."""

    block: Block
    ports: tuple[Face, ...]
    clocked: tuple[str, ...]  # clk and rst, where the module uses them

    @classmethod
    def of(cls, block: Block, clocked: tuple[str, ...] = ()) -> "Interface":
        """``clocked`` is what an elaboration finds: ``EmittedModule.implicit_ports``."""
        faces = tuple(_face(block, port) for port in flat_ports(block))
        return cls(block, faces, tuple(each for each in CLOCKS if each in clocked))

    @classmethod
    def found(cls, block: Block) -> "Interface":
        """``of`` with the clock and the reset, for which it converts ``block`` to RTLIL."""
        return cls.of(block, implicit_ports(block))

    @property
    def names(self) -> list[str]:
        """Names of all ports."""
        return [*self.clocked, *(port.name for port in self.ports)]

    @property
    def streams(self) -> list[str]:
        """Names of the streams, each once."""
        return list(dict.fromkeys(port.stream for port in self.ports if port.stream))


def _signatures(block: Block, path) -> tuple[tuple[int, wiring.Signature], ...]:
    found, signature, at = [], block.signature, 0
    while at < len(path):
        member = signature.members[path[at]]
        at += 1 + len(member.dimensions)
        if not member.is_signature:
            break
        signature = member.signature
        found.append((at, signature))
    return tuple(found)


def _face(block: Block, port: Port) -> Face:
    within, shape = _signatures(block, port.path), port_shape(block, port.path)
    role = "structure" if isinstance(shape, data.Layout) else "signal"
    if within and isinstance(within[-1][1], stream.Signature):
        role = f"stream {port.path[-1]}"
    return Face(
        port.name, port.path, port.direction, port.value,
        role=role,
        meaning=member_text(block, port.path),
        shape=shape,
        kind=member_kind(block, port.path),
        signatures=within,
    )  # fmt: skip
