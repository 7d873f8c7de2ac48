"""A module of Verilog as parts: expressions, statements, instances, declarations.

``hdl.back.write`` makes it of RTLIL, ``hdl.back.render`` writes its text.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from hdl.back.keywords import KEYWORDS

_COMPARISONS = frozenset("== != < <= > >= && ||".split())
_REDUCTIONS = frozenset("& | ^ !".split())
_OPERATORS = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, ">>>": 8,
    "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class Expr:
    """An expression: kind "name", "part", "select", "number", "concat", "op", "?", "signed", "raw".

    A "select" has ``width`` bits of a signal from the bit ``low`` + its part on.

    width: of its own, as Verilog defines it where nothing around it widens it; None: unknown.
    """

    kind: str
    text: str = ""  # name, number, operator, raw text
    parts: tuple["Expr", ...] = ()
    width: int | None = None
    low: int = 0  # of a part

    def names(self) -> Iterator[str]:
        if self.kind in ("name", "part", "select"):
            yield self.text
        elif self.kind == "raw":
            yield from _NAME.findall(self.text)
        for part in self.parts:
            yield from part.names()

    def constants(self) -> Iterator[str]:
        """Names of numbers."""
        if self.kind == "number" and "'" not in self.text:
            yield self.text
        for part in self.parts:
            yield from part.constants()

    @property
    def is_atom(self) -> bool:
        return self.kind in ("name", "part", "number")

    @property
    def depth(self) -> int:
        own = self.kind in ("op", "?")
        return own + max((part.depth for part in self.parts), default=0)

    def replace(self, change: Callable[["Expr"], "Expr"]) -> "Expr":
        if self.parts:
            parts = tuple(part.replace(change) for part in self.parts)
            self = dataclasses.replace(self, parts=parts)
        return change(self)

    def __str__(self) -> str:
        return self._text(0)

    def _text(self, outer: int) -> str:
        """outer: how tightly the operator around it binds."""
        match self.kind:
            case "name" | "number" | "raw":
                return self.text
            case "part":
                high = self.low + (self.width or 1) - 1
                return f"{self.text}[{high}:{self.low}]" if self.width != 1 else (
                    f"{self.text}[{self.low}]"
                )  # fmt: skip
            case "select":
                place = str(self.parts[0])
                if self.low:
                    place = f"{self.low} + {self.parts[0]._text(9)}"
                return f"{self.text}[{place} +: {self.width}]"
            case "concat":
                texts = []
                for text, same in itertools.groupby(map(str, self.parts)):
                    number = len(list(same))
                    texts.append(f"{{{number}{{{text}}}}}" if number > 1 else text)
                return f"{{{', '.join(texts)}}}"
            case "signed":
                return f"{self.text}({self.parts[0]})"
            case "?":
                condition, *ways = self.parts
                text = f"{condition._text(1)} ? {ways[0]._text(1)} : {ways[1]._text(0)}"
                return f"({text})" if outer else text
        if len(self.parts) == 1:
            text = f"{self.text}{self.parts[0]._text(12)}"
            return f"({text})" if outer == 12 else text
        # Operators of one kind chain; of others parentheses say what a reader need not know.
        bound = 11
        left, right = (
            part._text(
                _OPERATORS[self.text]
                if part.kind == "op"
                and not place
                and (
                    (part.text == self.text and self.text in ("&", "|", "^", "&&", "||"))
                    or {part.text, self.text} <= {"+", "-"}
                )
                and len(part.parts) == 2
                else bound
            )
            for place, part in enumerate(self.parts)
        )
        text = f"{left} {self.text} {right}"
        return f"({text})" if outer > _OPERATORS[self.text] or outer == 11 else text


_NOTHING = Expr("raw")


@dataclasses.dataclass
class Statement:
    """kind "=": ``target = value``; "if", "case": ``value`` selects among ``arms``."""

    kind: str
    target: Expr = _NOTHING
    value: Expr = _NOTHING
    # of "if": (condition or None for else, body); of "case": (patterns or None for default, body)
    arms: list[tuple] = dataclasses.field(default_factory=list)

    def expressions(self) -> Iterator[Expr]:
        if self.kind != "if":
            yield self.value
        for selects, body in self.arms:
            if self.kind == "if" and selects is not None:
                yield selects
            for each in body:
                yield from each.expressions()

    def replaced(self, change: Callable[[Expr], Expr]) -> "Statement":
        arms = [
            (
                selects.replace(change) if self.kind == "if" and selects is not None else selects,
                [each.replaced(change) for each in body],
            )
            for selects, body in self.arms
        ]
        return Statement(self.kind, self.target, self.value.replace(change), arms)

    def retargeted(self, old: str, new: str) -> "Statement":
        target = self.target
        if target.text == old:
            target = dataclasses.replace(target, text=new)
        arms = [
            (selects, [each.retargeted(old, new) for each in body]) for selects, body in self.arms
        ]
        return Statement(self.kind, target, self.value, arms)

    def targets(self) -> Iterator[Expr]:
        if self.kind == "=":
            yield self.target
        for _, body in self.arms:
            for each in body:
                yield from each.targets()


@dataclasses.dataclass
class Instance:
    module: str
    name: str
    connections: dict[str, Expr]


@dataclasses.dataclass
class Declared:
    kind: str  # input, output, wire or reg
    width: int
    depth: int = 0  # of a memory


@dataclasses.dataclass
class Module:
    """A module as its parts, which ``render`` writes."""

    name: str
    ports: list[str]  # in the order of the header
    declared: dict[str, Declared]
    assigns: list[tuple[Expr, Expr]]
    clocked: list[tuple[str, list[Statement]]]
    instances: list[Instance]
    unnamed: set[str]  # wires that the source gives no name
    constants: dict[str, Expr] = dataclasses.field(default_factory=dict)

    # -- what reads and drives ------------------------------------------------------------------
    def read(self) -> Iterator[Expr]:
        for _, value in self.assigns:
            yield value
        for clock, body in self.clocked:
            yield Expr("name", clock, width=1)
            for each in body:
                yield from each.expressions()
                for target in each.targets():  # addresses of memories
                    if target.kind == "raw":
                        yield Expr("raw", target.text.partition("[")[2])
        for instance in self.instances:
            yield from instance.connections.values()

    def reads(self) -> collections.Counter:
        return collections.Counter(name for each in self.read() for name in each.names())

    def name_unused(self, outputs: Mapping[str, Set[str]]) -> None:
        """Name wires ``unused_INSTANCE__PIN`` that only an output of an instance drives.

        outputs: of each child. Lint tools take the word for an intention.
        """
        reads, names = self.reads(), {}
        for instance in self.instances:
            for pin in sorted(outputs[instance.module] & instance.connections.keys()):
                value = instance.connections[pin]
                if value.kind == "name" and reads[value.text] == 1 and (
                    self.declared[value.text].kind == "wire"
                ):  # fmt: skip
                    names[value.text] = fresh(f"unused_{instance.name}__{pin}", self.declared)
                    self.declared[names[value.text]] = self.declared[value.text]
        self.declared = {name: known for name, known in self.declared.items() if name not in names}
        renamed(self, names)

    def rename_ports(self, names: Mapping[str, str]) -> None:
        """Give ports other names; a wire or an instance in the way gets a number."""
        changed = {name: names[name] for name in self.ports if names.get(name, name) != name}
        inside = (self.declared.keys() - set(self.ports)) | {each.name for each in self.instances}
        taken = {*self.declared, *changed.values(), *inside}
        for name in sorted(inside & set(changed.values())):
            changed[name] = fresh(name, taken)
            taken.add(changed[name])
        self.ports = [changed.get(name, name) for name in self.ports]
        self.declared = {changed.get(name, name): each for name, each in self.declared.items()}
        for instance in self.instances:
            instance.name = changed.get(instance.name, instance.name)
        renamed(self, changed)

    def _replace(self, change: Callable[[Expr], Expr]) -> None:
        self.assigns = [(target, value.replace(change)) for target, value in self.assigns]
        self.replace_elsewhere(change)

    def replace_elsewhere(self, change: Callable[[Expr], Expr]) -> None:
        """Change what is read by registers, memories and instances, not by assignments."""
        self.clocked = [(clk, [s.replaced(change) for s in body]) for clk, body in self.clocked]
        for instance in self.instances:
            connections = instance.connections
            instance.connections = {pin: each.replace(change) for pin, each in connections.items()}

    def wire(self, stem: str, width: int) -> Expr:
        name = fresh(stem, self.declared)
        self.declared[name] = Declared("wire", width)
        return Expr("name", name, width=width)


def fresh(stem: str, taken: Iterable[str]) -> str:
    name, n = stem, 2
    while name in taken or name in KEYWORDS:
        name, n = f"{stem}_{n}", n + 1
    return name


def operation(operator: str, *parts: Expr) -> Expr:
    widths = [part.width for part in parts]
    width: int | None
    if operator in _COMPARISONS or (len(parts) == 1 and operator in _REDUCTIONS):
        width = 1
    elif None in widths:
        width = None
    else:
        width = widths[0] if operator in ("<<", ">>", ">>>") else max(w or 0 for w in widths)
    if operator == "~" and width == 1:
        operator = "!"  # the same of one bit, and one bit wide anywhere
    if operator == "!" and (wide := widths[0] or 0) > 1:
        return Expr("op", "==", (parts[0], number("0" * wide)), 1)
    return Expr("op", operator, parts, width)


def choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
    width = None if yes.width is None or no.width is None else max(yes.width, no.width)
    return Expr("?", "?", (condition, yes, no), width)


def part_of(value: Expr, low: int, width: int) -> Expr:
    if value.width == width:
        return value
    if value.kind in ("name", "part"):
        return Expr("part", value.text, width=width, low=value.low + low)
    if value.kind == "number":
        bits = bits_of(value.text)
        return number(bits[len(bits) - low - width : len(bits) - low])
    assert value.kind == "concat", value
    parts, at = [], value.width or 0
    for part in value.parts:
        size = part.width or 0
        at -= size
        first, last = max(low, at), min(low + width, at + size)
        if first < last:
            parts.append(part_of(part, first - at, last - first))
    return parts[0] if len(parts) == 1 else Expr("concat", parts=tuple(parts), width=width)


def bits_of(number: str) -> str:
    """Binary digits of a sized number in base 2 or 16, high first; a pattern may have "?"."""
    width, _, digits = number.partition("'")
    base, digits = digits.lstrip("s")[0], digits.lstrip("s")[1:]
    size = {"b": 1, "h": 4}[base]
    bits = "".join(d * size if d == "?" else f"{int(d, 16):0{size}b}" for d in digits)
    return bits[-int(width) :].zfill(int(width))


def number(bits: str) -> Expr:
    return Expr("number", f"{len(bits)}'h{int(bits, 2):0{-(-len(bits) // 4)}x}", width=len(bits))


def low_bits(value: Expr, width: int) -> Expr:
    """The low ``width`` bits of a name, part, number or concatenation."""
    return part_of(value, 0, width)


def is_leaf(value: Expr) -> bool:
    return value.kind in ("name", "part", "number", "concat")


def values_of(module: Module) -> dict[str, Expr]:
    """The value of each wire without a name of the source."""
    return {
        target.text: value
        for target, value in module.assigns
        if target.kind == "name" and target.text in module.unnamed
    }


def children_first(values: Mapping[str, Expr]) -> list[str]:
    """The names in ``values``, each after those that its value reads."""
    order: dict[str, None] = {}
    for name in values:
        waiting = [name]
        while waiting:
            needed = [n for n in values[waiting[-1]].names() if n in values and n not in order]
            if needed and needed[0] not in waiting:
                waiting.append(needed[0])
            else:
                order.setdefault(waiting.pop())
    return list(order)


def renamed(module: Module, names: dict[str, str]) -> None:
    def named(each: Expr) -> Expr:
        if each.kind in ("name", "part") and each.text in names:
            return dataclasses.replace(each, text=names[each.text])
        if each.kind == "raw":
            text = re.sub(r"\b[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), each.text)
            return dataclasses.replace(each, text=text)
        return each

    def targets(body: list[Statement]) -> None:
        for each in body:
            each.target = named(each.target)
            for _, inner in each.arms:
                targets(inner)

    module.assigns = [(named(target), value) for target, value in module.assigns]
    module._replace(named)
    for _, body in module.clocked:
        targets(body)


def drop_unread(module: Module) -> None:
    """Remove wires without a reader, and what drives them."""
    while True:
        reads = module.reads()
        for instance in module.instances:  # a connection to an output reads nothing, and stays
            reads.update(name for each in instance.connections.values() for name in each.names())
        unread = {
            name
            for name, known in module.declared.items()
            if known.kind == "wire" and not known.depth and not reads[name]
        }
        if not unread:
            return
        module.assigns = [pair for pair in module.assigns if pair[0].text not in unread]
        for name in unread:
            del module.declared[name]


def signed_of(value: Expr) -> Expr:
    if value.kind == "number":
        bits = bits_of(value.text)
        return Expr("number", f"{len(bits)}'sh{int(bits, 2):0{-(-len(bits) // 4)}x}",
                    width=len(bits))  # fmt: skip
    return Expr("signed", "$signed", (value,), value.width)


def is_signed(value: Expr) -> bool:
    return value.kind == "signed" or (value.kind == "number" and "'s" in value.text)


def unsigned_of(value: Expr) -> Expr:
    if value.kind == "signed":
        return value.parts[0]
    if value.kind == "number":
        return number(bits_of(value.text))
    return value
