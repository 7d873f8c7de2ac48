"""The payload that every stream block carries, and how streams are joined to it and each other."""

from amaranth import Cat, Module, Value
from amaranth.hdl import Const
from amaranth.lib import data

from hdl.emit import SIGNAL_BITS
from hdl.ports import Payload

__all__ = ["LAST", "MAX_BITS", "data_bits", "pack", "payload_layout", "unpack"]

# Of data, with last in the same signal.
MAX_BITS = SIGNAL_BITS - 1

# Shape and text of the field that ends a packet.
LAST = (1, "the word ends its packet")


def payload_layout(width: int, last: bool = True) -> data.StructLayout:
    """``data``: ``width`` bits that the block does not read; ``last``, if any: ends a packet."""
    fields: dict = {"data": (width, "bits that pass unchanged")}
    return Payload(**fields, **({"last": LAST} if last else {}))


def data_bits(layout: data.StructLayout) -> int:
    """The ``width`` to configure for a payload of ``layout``: all its bits but ``last``."""
    return layout.size - ("last" in layout.members)


def pack(m: Module, source, sink) -> None:
    """Drive stream block input ``sink`` from ``source``, a stream of any StructLayout.

    A payload without ``last`` is a packet of its own.
    """
    fields = [
        Value.cast(source.payload[name])
        for name in source.payload.shape().members
        if name != "last"
    ]
    has_last = "last" in source.payload.shape().members
    m.d.comb += [
        sink.payload.data.eq(Cat(*fields)),
        sink.payload.last.eq(source.payload.last if has_last else Const(1)),
        sink.valid.eq(source.valid),
        source.ready.eq(sink.ready),
    ]


def unpack(m: Module, source, sink) -> None:
    """Drive ``sink``, a stream of any StructLayout, from stream block output ``source``."""
    fields = [
        Value.cast(sink.payload[name]) for name in sink.payload.shape().members if name != "last"
    ]
    m.d.comb += [
        Cat(*fields).eq(source.payload.data),
        sink.valid.eq(source.valid),
        source.ready.eq(sink.ready),
    ]
    if "last" in sink.payload.shape().members:
        m.d.comb += sink.payload.last.eq(source.payload.last)
