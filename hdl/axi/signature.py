"""AXI4 and AXI4-Lite as signatures: every channel a stream, seen from the manager.

A manager has a member ``Out(axi4_read(...))`` or ``Out(axi_lite(...))``, a subordinate ``In``.
valid, ready and payload of a channel are AXI's VALID, READY and the signals of that channel. So
the stream rules of the project are AXI's handshake rules. ``hdl.back.wrap`` finds these members
and gives them AXI's own port names.

Source: Arm IHI 0022H, AMBA AXI and ACE Protocol Specification.
"""

from amaranth import Module
from amaranth.lib import data, stream, wiring

from golden.axi.format import Burst, Resp
from hdl.kinds import BITS, BYTES, NUMBER, index_of, mask_of
from hdl.ports import Bus, In, Out, Payload

# Texts of signals that several channels have.
_ID = "ID of the transaction"
_ADDR = "byte address"
_PROT = "protection type"
_WORD = "word, the byte of the lowest address in the low bits"
_STRB = "one bit for each byte of data: write it"
_RESP = "0: OKAY, 1: EXOKAY, 2: SLVERR, 3: DECERR"
_LAST = "final beat of the burst"


def _address(id_bits: int, address_bits: int) -> data.StructLayout:
    """Payload of AR and of AW."""
    return Payload(
        id=(id_bits, _ID, BITS),
        addr=(address_bits, _ADDR, index_of("bytes")),
        len=(8, "beats - 1", NUMBER),
        size=(3, "log2 of the bytes of a beat", NUMBER),
        burst=(2, "1: INCR", Burst),
        lock=(1, "exclusive access"),
        cache=(4, "memory type", BITS),
        prot=(3, _PROT, BITS),
        qos=(4, "quality of service", BITS),
    )


def _read_channels(address_bits: int, data_bits: int, id_bits: int) -> dict:
    r = Payload(
        id=(id_bits, _ID, BITS),
        data=(data_bits, _WORD, BYTES),
        resp=(2, _RESP, Resp),
        last=(1, _LAST),
    )
    return {
        "ar": Out(stream.Signature(_address(id_bits, address_bits)), "read addresses"),
        "r": In(stream.Signature(r), "words read"),
    }


def _write_channels(address_bits: int, data_bits: int, id_bits: int) -> dict:
    w = Payload(
        data=(data_bits, _WORD, BYTES),
        strb=(data_bits // 8, _STRB, mask_of("bytes")),
        last=(1, _LAST),
    )
    return {
        "aw": Out(stream.Signature(_address(id_bits, address_bits)), "write addresses"),
        "w": Out(stream.Signature(w), "words to write"),
        "b": In(
            stream.Signature(Payload(id=(id_bits, _ID, BITS), resp=(2, _RESP, Resp))),
            "answers to writes",
        ),
    }


class Axi4Read(Bus):
    """Read half of AXI4: ``ar`` out, ``r`` in. ``data_bits`` is a power of two, 8..1024.

    ``id_bits`` 0 gives IDs of one bit, so that the ports are the same at every width.
    """

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        super().__init__(_read_channels(address_bits, data_bits, self.id_bits))


class Axi4Write(Bus):
    """Write half of AXI4: ``aw``, ``w`` out, ``b`` in; widths as for ``Axi4Read``."""

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        super().__init__(_write_channels(address_bits, data_bits, self.id_bits))


class Axi4(Bus):
    """Both halves of AXI4: ``ar``, ``aw``, ``w`` out, ``r``, ``b`` in."""

    def __init__(self, address_bits: int, data_bits: int, id_bits: int = 0):
        self.address_bits, self.data_bits = address_bits, data_bits
        self.id_bits = max(1, id_bits)
        sizes = address_bits, data_bits, self.id_bits
        super().__init__(_read_channels(*sizes) | _write_channels(*sizes))


class AxiLite(Bus):
    """AXI4-Lite of 32-bit words: ``aw``, ``w``, ``ar`` out, ``b``, ``r`` in."""

    def __init__(self, address_bits: int):
        self.address_bits = address_bits
        address = Payload(addr=(address_bits, _ADDR, index_of("bytes")), prot=(3, _PROT, BITS))
        super().__init__(
            {
                "aw": Out(stream.Signature(address), "write addresses"),
                "w": Out(
                    stream.Signature(
                        Payload(data=(32, _WORD, BYTES), strb=(4, _STRB, mask_of("bytes")))
                    ),
                    "words to write",
                ),
                "b": In(stream.Signature(Payload(resp=(2, _RESP, Resp))), "answers to writes"),
                "ar": Out(stream.Signature(address), "read addresses"),
                "r": In(
                    stream.Signature(Payload(data=(32, _WORD, BYTES), resp=(2, _RESP, Resp))),
                    "words read",
                ),
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
