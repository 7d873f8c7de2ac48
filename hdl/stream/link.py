"""The one way to connect two streams: layouts are compared before a wire is drawn."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from amaranth import Module, Shape, Value
from amaranth.hdl import ShapeCastable
from amaranth.lib import data


@dataclasses.dataclass(frozen=True)
class StreamView:
    """A stream whose payload is seen as ``payload``; ``link`` and a parent use it as a stream.

    Members: ``payload`` (also ``p``), ``valid``, ``ready``. No signal is added.
    """

    payload: object
    valid: Value
    ready: Value

    @property
    def p(self):
        return self.payload

    @classmethod
    def of(cls, bits: Value, shape, stream) -> "StreamView":
        """``stream`` with its payload ``bits`` seen as ``shape``."""
        payload = shape(bits) if isinstance(shape, ShapeCastable) else bits
        return cls(payload, stream.valid, stream.ready)


def as_bits(stream) -> StreamView:
    """``stream`` with its payload as plain bits, for words that one side does not look into."""
    return StreamView(Value.cast(stream.payload), stream.valid, stream.ready)


def link(
    m: Module,
    source,
    sink,
    rename: Mapping[str, str] | None = None,
    discard: Collection[str] = (),
) -> None:
    """Drive ``sink`` from ``source``: valid, ready, and each field of the payload by its name.

    Both are streams (``valid``, ``ready``, ``payload``). ``rename`` maps fields of the source to
    fields of the sink. ``discard`` names fields of the source that the sink does without. Fields
    are equal when names, widths and signedness are equal; nested layouts are compared field by
    field. The path is combinational and adds no cycle.

    Raises, in one line, TypeError when a field is missing on one side or differs in shape. Raises
    ValueError when ``rename`` or ``discard`` names a field that is not there.
    """
    given, wanted = _shape(source), _shape(sink)
    rename = dict(rename or {})
    if isinstance(given, data.StructLayout) and isinstance(wanted, data.StructLayout):
        _refuse_unknown("rename", rename, given)
        _refuse_unknown("discard", discard, given)
        kept = [name for name in given.members if name not in discard]
        names = {name: rename.get(name, name) for name in kept}
        if sorted(names.values()) != sorted(wanted.members):
            given_names = _listed(names.values())
            raise TypeError(f"link: the source has {given_names}, the sink {_listed(wanted)}")
        for name, target in names.items():
            difference = _difference(given.members[name], wanted.members[target])
            if difference:
                raise TypeError(f"link: field {name!r} of the source is {difference}")
        m.d.comb += [
            Value.cast(sink.payload[target]).eq(Value.cast(source.payload[name]))
            for name, target in names.items()
        ]
    else:
        _refuse_unknown("rename", rename, given)
        _refuse_unknown("discard", discard, given)
        difference = _difference(given, wanted)
        if difference:
            raise TypeError(f"link: the payload of the source is {difference}")
        m.d.comb += Value.cast(sink.payload).eq(Value.cast(source.payload))
    m.d.comb += [sink.valid.eq(source.valid), source.ready.eq(sink.ready)]


def link_members(m: Module, source, sink, names: Iterable[str]) -> None:
    """``link`` from block ``source`` to block ``sink`` the streams that both call by each name."""
    for name in names:
        link(m, getattr(source, name), getattr(sink, name))


def _shape(stream):
    payload = stream.payload
    return payload.shape() if isinstance(payload, data.View) else Value.cast(payload).shape()


def _refuse_unknown(argument: str, names: Collection[str], shape) -> None:
    fields = shape.members if isinstance(shape, data.StructLayout) else {}
    unknown = [name for name in names if name not in fields]
    if unknown:
        known = _listed(fields) or "no fields"
        raise ValueError(f"link: {argument} has {_listed(unknown)}; the source has {known}")


def _listed(names) -> str:
    return ", ".join(sorted(map(str, getattr(names, "members", names))))


def _difference(given, wanted) -> str | None:
    """The difference of two shapes, or None."""
    if isinstance(given, data.StructLayout) and isinstance(wanted, data.StructLayout):
        if list(given.members) != list(wanted.members):
            return f"{{{', '.join(given.members)}}}, of the sink {{{', '.join(wanted.members)}}}"
        pairs = zip(given.members.values(), wanted.members.values(), strict=True)
        return next(filter(None, (_difference(*pair) for pair in pairs)), None)
    if isinstance(given, data.ArrayLayout) and isinstance(wanted, data.ArrayLayout):
        if given.length != wanted.length:
            return f"{given.length} elements, of the sink {wanted.length}"
        return _difference(given.elem_shape, wanted.elem_shape)
    bits, others = Shape.cast(given), Shape.cast(wanted)
    return None if bits == others else f"{bits!r}, of the sink {others!r}"
