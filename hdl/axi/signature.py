"""AXI4 and AXI4-Lite as signatures: every channel a stream, seen from the manager.

A manager has a member ``Out(axi4_read(...))`` or ``Out(axi_lite(...))``, a subordinate ``In``.
valid, ready and payload of a channel are AXI's VALID, READY and the signals of that channel, so
the stream rules of the project are AXI's handshake rules. ``hdl.axi.wrap`` finds these members
and gives them AXI's own port names.

Source: Arm IHI 0022H, AMBA AXI and ACE Protocol Specification.
"""

from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, Signature

__all__ = ["Axi4Read", "AxiLite", "axi4_read", "axi_lite"]


class Axi4Read(Signature):
    """Read half of AXI4: ``ar`` out, ``r`` in. ``data_bits`` is a power of two, 8..1024.

    ``id_bits`` 0 gives IDs of one bit, so that the ports are the same at every width.
    """

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        super().__init__(
            {
                "ar": Out(
                    stream.Signature(
                        data.StructLayout(
                            {
                                "id": self.id_bits,
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
                    )
                ),
                "r": In(
                    stream.Signature(
                        data.StructLayout(
                            {"id": self.id_bits, "data": data_bits, "resp": 2, "last": 1}
                        )
                    )
                ),
            }
        )


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


def axi_lite(address_bits: int) -> AxiLite:
    """AXI4-Lite as the manager has it; a register file has ``In(axi_lite(12))``."""
    return AxiLite(address_bits)
