"""AXI4 and AXI4-Lite as signatures: every channel a stream, seen from the manager.

A manager has a member ``Out(axi4_read(...))`` or ``Out(axi_lite(...))``, a subordinate ``In``.
valid, ready and payload of a channel are AXI's VALID, READY and the signals of that channel. So
the stream rules of the project are AXI's handshake rules. ``hdl.axi.wrap`` finds these members
and gives them AXI's own port names.

Source: Arm IHI 0022H, AMBA AXI and ACE Protocol Specification.
"""

from amaranth import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, Signature

__all__ = [
    "Axi4",
    "Axi4Read",
    "Axi4Write",
    "AxiLite",
    "axi4",
    "axi4_read",
    "axi4_write",
    "axi_lite",
    "pass_channels",
]


def _address(id_bits: int, address_bits: int) -> data.StructLayout:
    """Payload of AR and of AW."""
    return data.StructLayout(
        {
            "id": id_bits,
            "addr": address_bits,
            "len": 8,  # beats - 1
            "size": 3,  # log2 of the bytes of a beat
            "burst": 2,
            "lock": 1,
            "cache": 4,
            "prot": 3,
            "qos": 4,
        }
    )


def _read_channels(address_bits: int, data_bits: int, id_bits: int) -> dict:
    r = data.StructLayout({"id": id_bits, "data": data_bits, "resp": 2, "last": 1})
    return {
        "ar": Out(stream.Signature(_address(id_bits, address_bits))),
        "r": In(stream.Signature(r)),
    }


def _write_channels(address_bits: int, data_bits: int, id_bits: int) -> dict:
    w = data.StructLayout({"data": data_bits, "strb": data_bits // 8, "last": 1})
    return {
        "aw": Out(stream.Signature(_address(id_bits, address_bits))),
        "w": Out(stream.Signature(w)),
        "b": In(stream.Signature(data.StructLayout({"id": id_bits, "resp": 2}))),
    }


class Axi4Read(Signature):
    """Read half of AXI4: ``ar`` out, ``r`` in. ``data_bits`` is a power of two, 8..1024.

    ``id_bits`` 0 gives IDs of one bit, so that the ports are the same at every width.
    """

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        super().__init__(_read_channels(address_bits, data_bits, self.id_bits))


class Axi4Write(Signature):
    """Write half of AXI4: ``aw``, ``w`` out, ``b`` in; widths as for ``Axi4Read``."""

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        super().__init__(_write_channels(address_bits, data_bits, self.id_bits))


class Axi4(Signature):
    """Both halves of AXI4: ``ar``, ``aw``, ``w`` out, ``r``, ``b`` in."""

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        sizes = address_bits, data_bits, self.id_bits
        super().__init__(_read_channels(*sizes) | _write_channels(*sizes))


class AxiLite(Signature):
    """AXI4-Lite of 32-bit words: ``aw``, ``w``, ``ar`` out, ``b``, ``r`` in."""

    def __init__(self, address_bits: int):
        self.address_bits = address_bits
        address = data.StructLayout({"addr": address_bits, "prot": 3})
        super().__init__(
            {
                "aw": Out(stream.Signature(address)),
                "w": Out(stream.Signature(data.StructLayout({"data": 32, "strb": 4}))),
                "b": In(stream.Signature(data.StructLayout({"resp": 2}))),
                "ar": Out(stream.Signature(address)),
                "r": In(stream.Signature(data.StructLayout({"data": 32, "resp": 2}))),
            }
        )


def axi4_read(address_bits: int, data_bits: int, id_bits: int = 0) -> Axi4Read:
    """AXI4 read channels as the manager has them: ``Out(axi4_read(40, 512))``."""
    return Axi4Read(address_bits, data_bits, id_bits)


def axi4_write(address_bits: int, data_bits: int, id_bits: int = 0) -> Axi4Write:
    """AXI4 write channels as the manager has them: ``Out(axi4_write(40, 512))``."""
    return Axi4Write(address_bits, data_bits, id_bits)


def axi4(address_bits: int, data_bits: int, id_bits: int = 0) -> Axi4:
    """AXI4 as a manager that reads and writes has it: ``Out(axi4(40, 512))``."""
    return Axi4(address_bits, data_bits, id_bits)


def axi_lite(address_bits: int) -> AxiLite:
    """AXI4-Lite as the manager has it; a register file has ``In(axi_lite(12))``."""
    return AxiLite(address_bits)


def pass_channels(m: Module, inner, outer) -> None:
    """Join each channel of ``inner``, a child's bus, to that of the same name of ``outer``.

    ``outer`` is the parent's own member and may have more channels. With one call each, a read
    port and a write port share a member ``Out(axi4(...))``.
    """
    for name in inner.signature.members:
        wiring.connect(m, getattr(inner, name), wiring.flipped(getattr(outer, name)))
