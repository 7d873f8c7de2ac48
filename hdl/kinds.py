"""Kinds tell what the bits of a port or field mean: the third part of ``(shape, text, kind)``.

A shape of Amaranth has a width and a sign. It does not know FP16, an index or the names of codes.
A layout gives these as a kind::

    Payload(word=(data.ArrayLayout(16, 8), "elements", FP16), op=(4, "what to do", Op))

A kind is one of: a FloatFormat; an enumeration of codes (IntEnum) or of bits (IntFlag); a ``Kind``
of this module. The kind of an array is that of its elements. The hardware is the same without it.

Some shapes say the kind themselves, and the layout gives none:

    shape                                      kind
    ``1``                                      bool: the text says what 1 means
    ``range(...)``, ``signed(...)``,           a number
    ``unsigned(...)``
    an enumeration                             its codes
    a layout                                   that of each field

Every other port or field of a registered block must have one: tests/test_description.py asks
``hdl.back.verilog.without_kind`` for every block at every named configuration.
"""

import dataclasses
import enum
import inspect
import re

from amaranth.hdl import Shape, ShapeCastable
from amaranth.lib import data

from golden.fp16.format import FloatFormat
from golden.isa import CommandSet


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Meaning of one word, or of each element of an array.

    name : ``number``, ``bool``, ``bits``, ``float``, ``index``, ``mask``, ``enum`` or ``flags``;
        a number is signed or unsigned by its shape
    element_bits : the shape is one word of several elements of so many bits, the first one lowest;
        0: the shape itself says what the elements are
    scale : number: its value is the word times 2**scale
    of : index: what is counted, from 0; mask: of what each has a bit
    codes : enum, flags: the named values
    format : float: its widths
    names : what each element of the array is, by position
    commands : the opcodes, or the words, are those of this command set
    """

    name: str
    element_bits: int = 0
    scale: int = 0
    of: str = ""
    codes: type[enum.Enum] | None = None
    format: FloatFormat | None = None
    names: type[enum.Enum] | None = None
    commands: CommandSet | None = None


NUMBER = Kind(name="number")
BITS = Kind(name="bits")  # passed on or compared, not read as a number
BYTES = Kind(name="bits", element_bits=8)  # the lowest address in the low bits
_BOOL = Kind(name="bool")


def index_of(of: str) -> Kind:
    """A place, from 0 on, among ``of``."""
    return Kind(name="index", of=of)


def mask_of(of: str) -> Kind:
    """Bit n: of number n among ``of``."""
    return Kind(name="mask", of=of)


def fixed(scale: int) -> Kind:
    """A fixed-point number: the word times 2**scale."""
    return Kind(name="number", scale=scale)


def codes(members: type[enum.Enum]) -> Kind:
    """One of the members."""
    return Kind(name="enum", codes=members)


def flags(members: type[enum.Enum]) -> Kind:
    """Any of the members together; 0: none."""
    return Kind(name="flags", codes=members)


def named(kind, members: type[enum.Enum]) -> Kind:
    """An array of ``kind`` in which element ``member.value`` is what the member says."""
    return dataclasses.replace(_kind(kind), names=members)


def opcode(commands: CommandSet) -> Kind:
    """An opcode; its operands are in the field ``operand`` of the same payload."""
    opcodes = type(next(iter(commands.commands)))
    return Kind(name="enum", codes=opcodes, commands=commands)


def command_words(commands: CommandSet) -> Kind:
    """One word of a command; ``commands.words`` of them are a command."""
    return Kind(name="bits", commands=commands)


def _kind(given) -> Kind:
    """``given`` of a layout as a Kind."""
    if isinstance(given, Kind):
        return given
    if isinstance(given, FloatFormat):
        return Kind(name="float", format=given, element_bits=given.bits)
    if isinstance(given, type) and issubclass(given, enum.Flag):
        return flags(given)
    if isinstance(given, type) and issubclass(given, enum.Enum):
        return codes(given)
    raise TypeError(f"a kind must be a Kind, a FloatFormat or an enumeration, not {given!r}")


def kind_of(shape, given=None) -> Kind | None:
    """The kind of a word of ``shape``; None where neither ``given`` nor the shape says it."""
    if given is not None:
        return _kind(given)
    if isinstance(shape, type) and issubclass(shape, enum.Enum):
        return _kind(shape)
    if isinstance(shape, range | Shape):
        return NUMBER
    if isinstance(shape, int) and shape == 1:
        return _BOOL
    return None


def elements(shape) -> tuple[tuple[int, ...], object]:
    """(lengths of the nested arrays, outer first; shape of an element)."""
    lengths = []
    while isinstance(shape, data.ArrayLayout):
        lengths.append(shape.length)
        shape = shape.elem_shape
    return tuple(lengths), shape


def is_plain(shape) -> bool:
    """A word, not a structure of fields."""
    return not isinstance(shape, ShapeCastable) or isinstance(shape, type)


def member_texts(members: type[enum.Enum]) -> dict[str, str]:
    """Name to the comment after it; of a member without one no entry."""
    source = inspect.getsource(members)
    single = dict(re.findall(r"^    (\w+) = [^#\n]*?# (.*)$", source, re.M))
    # A long line that was wrapped: the comment follows the value within the parentheses.
    wrapped = dict(re.findall(r"^    (\w+) = \(\n[^#]*?# (.*)\n    \)", source, re.M))
    after = re.findall(r"^    (\w+) = \(\n[^#]*?\n    \)  # (.*)$", source, re.M)
    found = single | wrapped | dict(after)
    return {each.name: found[each.name] for each in members if each.name in found}
