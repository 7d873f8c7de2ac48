"""The one list of a block's ports: each member and each field of a payload with its meaning.

A block gives its members with ``In(shape, text, kind)`` and ``Out(shape, text, kind)``. A layout
gives its fields with ``Payload(name=(shape, text, kind))``, a bus its channels with ``Bus``. The
pages, NAME.json and ``python -m hdl.build NAME --ports`` print the texts. ``hdl.kinds`` says what a
kind is and where it is left out. The hardware is that of Amaranth's ``In``, ``Out``,
``StructLayout`` and ``Signature``: texts and kinds are no part of it.

A text is one phrase: what the words mean, with unit and range where the width does not say it.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from amaranth.lib import data, stream, wiring

from hdl.kinds import member_texts

Texts = dict[str, str | tuple[str, ...]]
Kinds = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a signature, its text and its kind.

    text: one phrase. In the text of an array, ``{0}``, ``{1}``, ... are the indices of an element.
        A one-dimensional array may have a tuple instead, with a phrase for each element.
    kind: as ``hdl.kinds`` says. Of a stream: that of a payload without fields.
    """

    member: wiring.Member
    text: str | tuple[str, ...]
    kind: object = None

    def array(self, *dimensions: int) -> "Member":
        """An array of such members, as Amaranth's ``array``."""
        return Member(self.member.array(*dimensions), self.text, self.kind)

    def flip(self) -> "Member":
        """The member as the other side has it, as Amaranth's ``flip``."""
        return Member(self.member.flip(), self.text, self.kind)


def In(shape, text: str | tuple[str, ...], kind=None) -> Member:
    """An input of ``shape``, or a signature that the block receives; ``text`` says its meaning."""
    return Member(wiring.In(shape), text, kind)


def Out(shape, text: str | tuple[str, ...], kind=None) -> Member:
    """An output of ``shape``, or a signature that the block drives; ``text`` says its meaning."""
    return Member(wiring.Out(shape), text, kind)


class Payload(data.StructLayout):
    """A StructLayout with a text and a kind for each field: ``Payload(y=(16, "sum", FP16), ...)``.

    A field whose shape says its kind is a shape and a text. A field of a layout that reaches no
    page may be a shape alone.
    ``parts`` is what the layout was made of, for a layout with further fields:
    ``Payload(**row.parts, tag=(8, "of the request"))``. Two layouts that differ only in texts
    and kinds are equal.
    """

    def __init__(self, /, **parts):
        self.parts: dict[str, tuple] = {
            name: part if isinstance(part, tuple) else (part, "") for name, part in parts.items()
        }
        super().__init__({name: part[0] for name, part in self.parts.items()})

    @property
    def texts(self) -> Texts:
        return {name: part[1] for name, part in self.parts.items()}

    @property
    def kinds(self) -> Kinds:
        return {name: part[2] for name, part in self.parts.items() if len(part) > 2}


def status_layout(faults) -> Payload:
    """One bit per member of the IntFlag ``faults``; the comment after it is the bit's text."""
    texts = member_texts(faults)
    return Payload(**{bit.name.lower(): (1, texts[bit.name]) for bit in faults})


class Bus(wiring.Signature):
    """A signature with a text for each member: channels of a bus."""

    def __init__(self, members: Mapping[str, Member]):
        plain, self.texts, self.kinds = split(members)
        super().__init__(plain)


def split(members: Mapping) -> tuple[dict[str, wiring.Member], Texts, Kinds]:
    """Amaranth's members, and the texts and kinds of those that have one."""
    told = {name: each for name, each in members.items() if isinstance(each, Member)}
    plain = {name: each.member if name in told else each for name, each in members.items()}
    texts = {name: each.text for name, each in told.items()}
    kinds = {name: each.kind for name, each in told.items() if each.kind is not None}
    return plain, texts, kinds


def _steps(
    block, path: tuple[str | int, ...]
) -> Iterator[tuple[object, str, wiring.Member, tuple]]:
    """(what holds the member, its name, the member, indices) along ``path``, outer first."""
    owner, signature, at = block, block.signature, 0
    while at < len(path):
        name = str(path[at])
        member = signature.members[name]
        indices = path[at + 1 : at + 1 + len(member.dimensions)]
        yield owner, name, member, indices
        if not member.is_signature:
            return
        owner = signature = member.signature
        at += 1 + len(indices)


def member_text(block, path: tuple[str | int, ...]) -> str:
    """The text of the port at ``path``: that of its member, then that of its channel.

    Empty if one of them has none. A stream's ``payload``, ``valid`` and ``ready`` add nothing.
    """
    found = []
    for owner, name, _, indices in _steps(block, path):
        if isinstance(owner, stream.Signature):
            break
        text = getattr(owner, "texts", {}).get(name, "")
        if isinstance(text, tuple):
            text = text[indices[0]]
        elif indices:
            text = text.format(*indices)
        if not text:
            return ""
        found.append(text)
    return ": ".join([text.rstrip(".") for text in found[:-1]] + found[-1:])


def port_shape(block, path: tuple[str | int, ...]):
    """The shape that the signature gives to the port at ``path``."""
    *_, (_, _, member, _) = _steps(block, path)
    return member.shape


def member_kind(block, path: tuple[str | int, ...]):
    """The kind that the block or the bus gives to the port at ``path``, or to its stream."""
    kind = None
    for owner, name, _, _ in _steps(block, path):
        if isinstance(owner, stream.Signature):
            break
        kind = getattr(owner, "kinds", {}).get(name)
    return kind


def field_texts(shape) -> Texts:
    """Field name to text of a layout made by ``Payload``; of another shape none."""
    return shape.texts if isinstance(shape, Payload) else {}


def field_kinds(shape) -> Kinds:
    """Field name to kind of a layout made by ``Payload``; of another shape none."""
    return shape.kinds if isinstance(shape, Payload) else {}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a payload: ``outlier[].present`` is a field of each element of an array."""

    name: str
    offset: int  # from bit 0 of the payload; of an array's element: from bit 0 of the element
    width: int
    text: str

    @property
    def bits(self) -> str:
        """``[high:low]``, or ``[bit]``."""
        high = self.offset + self.width - 1
        return f"[{high}:{self.offset}]" if self.width > 1 else f"[{high}]"


def fields_of(shape, prefix: str = "", base: int = 0) -> Iterator[Field]:
    """The fields of a layout in order, and those within them; fields without bits are left out."""
    if isinstance(shape, data.ArrayLayout):
        element = shape.elem_shape
        if isinstance(element, data.StructLayout | data.ArrayLayout):
            yield from fields_of(element, f"{prefix}[]", 0)
    if not isinstance(shape, data.StructLayout) or all(map(str.isdigit, shape.members)):
        return  # members named by numbers are elements: the text of the whole describes them
    texts = field_texts(shape)
    for key, field in shape:
        if not field.width:
            continue
        name = f"{prefix}.{key}"
        text = texts.get(key, "")
        yield Field(name, base + field.offset, field.width, str(text))
        yield from fields_of(field.shape, name, base + field.offset)
