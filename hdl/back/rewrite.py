"""Verilog of one module, as Yosys writes it -> the same circuit for a reader.

Yosys writes one assignment per operator, a process per signal and a helper register with an initial
value. ``rewrite`` returns a module in which

- a register's next state is in the ``always`` block of the register;
- combinational logic is continuous assignments alone: there is no ``always @*``, which needs an
  event at time 0, and so no helper register;
- an operator without a name of its own is part of the one expression that reads it;
- a part of a payload that is a field has the field's name;
- no name needs a backslash, and no wire is without a reader.

Names of ports, registers and instances stay; ``tests/same_logic.py`` compares the circuits. The
benches simulate the rewritten text (``hdl.back.deliver``).
"""

import collections
import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from hdl.back.keywords import KEYWORDS

_NUMBER = r"\d+'s?[bdho][0-9a-fA-FxzXZ?]+"
_TOKEN = re.compile(
    rf"\s*({_NUMBER}|\d+|\$?[A-Za-z_]\w*|>>>|<<<|===|!==|==|!=|<=|>=|&&|\|\||<<|>>|\+:|\S)"
)
_RAW_NAME = re.compile(rf"({_NUMBER})|(\$(?:signed|unsigned)\b)|\\(\S+) ?|([A-Za-z_][\w$]*)")
_DECLARATION = re.compile(
    r"  (input|output|wire|reg)( signed)?(?: \[(\d+):0\])? (\w+)(?: \[(\d+):0\])?;"
)
_COMPARISONS = frozenset("== != < <= > >= && || === !==".split())
_BITWISE = frozenset("& | ^".split())
_REDUCTIONS = frozenset("& | ^ ~& ~| ~^ !".split())
_OPERATORS = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<<<": 8, ">>>": 8,
    "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6, "===": 6, "!==": 6,
    "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1,
}  # fmt: skip
_WORDS = {
    "+": "sum", "-": "difference", "*": "product", "<<": "shifted", ">>": "shifted",
    ">>>": "shifted", "<<<": "shifted", "&": "both", "|": "any", "^": "odd", "~": "inverse",
    "?": "choice",
}  # fmt: skip
_DEPTH_MAX = 4  # operators within each other
_LENGTH_MAX = 90  # characters of an expression that becomes part of another
_NESTING = 10_000


@dataclasses.dataclass(frozen=True)
class Expr:
    """An expression: kind "name", "part", "number", "concat", "op", "?", "signed", "raw".

    width: of its own, as Verilog defines it where nothing around it widens it; None: unknown.
    """

    kind: str
    text: str = ""  # name, number, operator, raw text
    parts: tuple["Expr", ...] = ()
    width: int | None = None
    low: int = 0  # of a part

    def names(self) -> Iterator[str]:
        if self.kind in ("name", "part"):
            yield self.text
        elif self.kind == "raw":
            for match in _TOKEN.finditer(self.text):
                if re.fullmatch(r"[A-Za-z_]\w*", match[1]):
                    yield match[1]
        for part in self.parts:
            yield from part.names()

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
                if part.kind == "op" and part.text == self.text and part.text in "&|^" and not place
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
    is_signed: bool = False


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
                    names[value.text] = _fresh(f"unused_{instance.name}__{pin}", self.declared)
                    self.declared[names[value.text]] = self.declared[value.text]
        self.declared = {name: known for name, known in self.declared.items() if name not in names}
        _renamed(self, names)

    def rename_ports(self, names: Mapping[str, str]) -> None:
        """Give ports other names; a wire or an instance in the way gets a number."""
        changed = {name: names[name] for name in self.ports if names.get(name, name) != name}
        inside = (self.declared.keys() - set(self.ports)) | {each.name for each in self.instances}
        taken = {*self.declared, *changed.values(), *inside}
        for name in sorted(inside & set(changed.values())):
            changed[name] = _fresh(name, taken)
            taken.add(changed[name])
        self.ports = [changed.get(name, name) for name in self.ports]
        self.declared = {changed.get(name, name): each for name, each in self.declared.items()}
        for instance in self.instances:
            instance.name = changed.get(instance.name, instance.name)
        _renamed(self, changed)

    def _replace(self, change: Callable[[Expr], Expr]) -> None:
        self.assigns = [(target, value.replace(change)) for target, value in self.assigns]
        self.clocked = [(clk, [s.replaced(change) for s in body]) for clk, body in self.clocked]
        for instance in self.instances:
            connections = instance.connections
            instance.connections = {pin: each.replace(change) for pin, each in connections.items()}

    def wire(self, stem: str, width: int) -> Expr:
        name = _fresh(stem, self.declared)
        self.declared[name] = Declared("wire", width)
        return Expr("name", name, width=width)


def _fresh(stem: str, taken: Iterable[str]) -> str:
    name, n = stem, 2
    while name in taken or name in KEYWORDS:
        name, n = f"{stem}_{n}", n + 1
    return name


# -- reading ------------------------------------------------------------------------------------
def _raw(match: re.Match) -> str:
    """A name without its backslash, unless it would be a keyword."""
    if match[3] in KEYWORDS:
        return f"\\{match[3]}"
    return match[3] or match[4] or ""


def plain_names(text: str) -> tuple[str, set[str]]:
    """``text`` with names of letters, digits and ``_`` alone; those that had only a number."""
    raw = {_raw(match) for match in _RAW_NAME.finditer(text)} - {""}
    taken = {
        name
        for name in raw
        if re.fullmatch(r"[A-Za-z_]\w*", name) and not re.fullmatch(r"_\d+_", name)
    }
    names, unnamed = {name: name for name in taken}, set()
    for name in sorted(raw - taken):
        number = re.fullmatch(r"\$(\d+)", name)
        stem = re.sub(r"\W+", "_", name.replace(".", "__")).strip("_")
        if number:
            stem = f"_{number[1]}"
        elif stem[:1].isdigit():  # the word that a memory's port has read: ``_0_``
            stem = f"word_{stem}"
        chosen = _fresh(stem, taken)
        taken.add(chosen)
        names[name] = chosen
        if number:
            unnamed.add(chosen)

    def plain(match: re.Match) -> str:
        return match[1] or match[2] or names[_raw(match)]

    return _RAW_NAME.sub(plain, text), unnamed


class _Parser:
    """Expressions and statements of what Yosys writes."""

    def __init__(self, declared: dict[str, Declared]):
        self.declared = declared

    def expression(self, text: str) -> Expr:
        self.tokens, self.at = _TOKEN.findall(text), 0
        try:
            found = self._ternary()
            if self.at != len(self.tokens):
                raise IndexError
        except IndexError:
            return Expr("raw", text.strip())
        return found

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self.tokens[self.at]
        if wanted and token != wanted:
            raise IndexError
        self.at += 1
        return token

    def _ternary(self) -> Expr:
        first = self._binary()
        if self._peek() != "?":
            return first
        self._take()
        yes = self._ternary()
        self._take(":")
        return _choice(first, yes, self._ternary())

    def _binary(self) -> Expr:
        left = self._unary()
        if self._peek() not in _OPERATORS:
            return left
        operator = self._take()
        right = self._unary()
        if self._peek() in _OPERATORS:  # Yosys writes one operator per assignment
            raise IndexError
        return _operation(operator, left, right)

    def _unary(self) -> Expr:
        token = self._peek()
        if token in ("~", "!", "&", "|", "^", "-"):
            self._take()
            return _operation(token, self._unary())
        return self._primary()

    def _primary(self) -> Expr:
        token = self._take()
        if re.fullmatch(_NUMBER, token):
            return Expr("number", token, width=int(token.partition("'")[0]))
        if token == "{":
            parts = [self._ternary()]
            while self._peek() == ",":
                self._take()
                parts.append(self._ternary())
            self._take("}")
            widths = [part.width for part in parts]
            width = None if None in widths else sum(w for w in widths if w is not None)
            return Expr("concat", parts=tuple(parts), width=width)
        if token in ("$signed", "$unsigned"):
            self._take("(")
            inner = self._ternary()
            self._take(")")
            return Expr("signed", token, (inner,), inner.width)
        if token not in self.declared:
            raise IndexError
        known = self.declared[token]
        if self._peek() != "[":
            if known.depth or known.is_signed:
                raise IndexError
            return Expr("name", token, width=known.width)
        self._take()
        high = self._take()
        low = self._take() and self._take() if self._peek() == ":" else high
        self._take("]")
        if known.depth or not (high.isdigit() and low.isdigit()) or self._peek() == "[":
            raise IndexError
        return Expr("part", token, width=int(high) - int(low) + 1, low=int(low))

    # -- statements -----------------------------------------------------------------------------
    def body(self, lines: list[str]) -> list[Statement]:
        self.lines, self.line = lines, 0
        found = self._statements()
        assert self.line == len(lines), lines[self.line]
        return found

    def _next(self) -> str:
        return self.lines[self.line] if self.line < len(self.lines) else "end"

    def _ends(self) -> bool:
        return re.match(r"(end|endcase)( else\b.*)?$", self._next()) is not None

    def _statements(self) -> list[Statement]:
        """Up to an ``end``, an ``endcase`` or the next arm."""
        found: list[Statement] = []
        while not (self._ends() or re.match(r"(default|[\d'a-z?, ]+):$", self._next())):
            found += self._statement()
        return found

    def _block(self) -> list[Statement]:
        found = self._statements()
        assert self._ends(), self._next()
        return found

    def _statement(self) -> list[Statement]:
        line = self._next()
        self.line += 1
        if line == "/* empty */;":
            return []
        if line == "begin":
            found = self._block()
            self.line += 1
            return found
        if match := re.fullmatch(r"if \((.*)\)( begin)?", line):
            return [self._if(match)]
        if match := re.fullmatch(r"casez? \((.*)\)", line):
            selector, arms = self.expression(match[1]), []
            while self._next() != "endcase":
                patterns = self._next()[:-1]
                self.line += 1
                body = self._statement()
                arms.append((None if patterns == "default" else patterns.split(", "), body))
            self.line += 1
            return [Statement("case", value=selector, arms=arms)]
        match = re.fullmatch(r"(.*?) (?:<?=) (.*);", line)
        assert match is not None, line
        target, value = self.expression(match[1]), self.expression(match[2])
        return [Statement("=", part, piece) for part, piece in _pieces(target, value)]

    def _if(self, match: re.Match) -> Statement:
        arms = []
        condition: Expr | None = self.expression(match[1])
        if not match[2]:
            return Statement("if", arms=[(condition, self._statement())])
        while True:
            arms.append((condition, self._block()))
            line = self._next()
            self.line += 1
            if line == "end else begin":
                condition = None
            elif more := re.fullmatch(r"end else if \((.*)\) begin", line):
                condition = self.expression(more[1])
            else:
                assert line == "end", line
                return Statement("if", arms=arms)


def _operation(operator: str, *parts: Expr) -> Expr:
    widths = [part.width for part in parts]
    width: int | None
    if operator in _COMPARISONS or (len(parts) == 1 and operator in _REDUCTIONS):
        width = 1
    elif None in widths:
        width = None
    else:
        width = widths[0] if operator in ("<<", ">>", "<<<", ">>>") else max(w or 0 for w in widths)
    if operator == "~" and width == 1:
        operator = "!"  # the same of one bit, and one bit wide anywhere
    if operator == "!" and (wide := widths[0] or 0) > 1:
        return Expr("op", "==", (parts[0], _number("0" * wide)), 1)
    return Expr("op", operator, parts, width)


def _choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
    width = None if yes.width is None or no.width is None else max(yes.width, no.width)
    return Expr("?", "?", (condition, yes, no), width)


def _read(text: str) -> tuple[Module, list[list[Statement]]]:
    """The module, and the bodies of its combinational processes."""
    # The helper whose initial value starts every process at time 0.
    text = re.sub(r"^  reg \\\$auto\$verilog_backend\S+  = 0;\n", "", text, flags=re.M)
    text = re.sub(r"^    if \(\\\$auto\$verilog_backend\S+ \) begin end\n", "", text, flags=re.M)
    header, _, text = text.partition(";\n")
    text, unnamed = plain_names(text)
    name, _, ports = header.removeprefix("module ").partition("(")
    name = name.strip().lstrip("\\")
    declared: dict[str, Declared] = {}
    module = Module(
        name, [port.strip() for port in ports.rstrip(")").split(",") if port.strip()],
        declared, [], [], [], unnamed,
    )  # fmt: skip
    lines = text.splitlines()
    parser = _Parser(declared)
    for line in lines:
        if match := _DECLARATION.fullmatch(line):
            kind, sign, high, signal, last = match.groups()
            known = declared.get(signal)
            if known is None:
                known = declared[signal] = Declared(kind, int(high or 0) + 1)
            elif kind == "reg" and known.kind == "output":
                known.kind = "output reg"
            known.depth = int(last) + 1 if last else known.depth
            known.is_signed |= bool(sign)
    processes, at = [], 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if line in ("endmodule", "") or _DECLARATION.fullmatch(line):
            continue
        if line.startswith("  assign "):
            assert line.endswith(";"), line
            target, _, value = line[9:-1].partition(" = ")
            for part, piece in _pieces(parser.expression(target), parser.expression(value)):
                module.assigns.append((part, piece))
            continue
        inner = []
        if line.endswith("("):  # an instance
            while lines[at] != "  );":
                inner.append(lines[at].strip().rstrip(","))
                at += 1
            at += 1
            kind, instance = line[:-1].split()
            pins = [re.fullmatch(r"\.(\w+)\((.*)\)", pin) for pin in inner]
            connections = {pin[1]: parser.expression(pin[2]) for pin in pins if pin}
            assert len(connections) == len(inner), line
            module.instances.append(Instance(kind, instance, connections))
            continue
        match = re.fullmatch(r"  always @(\*|\(posedge (\w+)\))( begin)?", line)
        assert match is not None, line
        end = "  end" if match[3] else ""
        while lines[at] != end and not (not end and inner):
            inner.append(lines[at].strip())
            at += 1
        at += bool(end)
        body = parser.body(inner)
        if match[2]:
            module.clocked.append((match[2], body))
        else:
            processes.append(body)
    return module, processes


def _pieces(target: Expr, value: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Assignments to each part of a concatenation ``target``."""
    if target.kind != "concat":
        yield target, value
        return
    at = target.width or 0
    for part in target.parts:
        at -= part.width or 0
        yield part, _part_of(value, at, part.width or 0)


def _part_of(value: Expr, low: int, width: int) -> Expr:
    if value.width == width:
        return value
    if value.kind in ("name", "part"):
        return Expr("part", value.text, width=width, low=value.low + low)
    if value.kind == "number":
        bits = _bits(value.text)
        return _binary(bits[len(bits) - low - width : len(bits) - low])
    assert value.kind == "concat", value
    parts, at = [], value.width or 0
    for part in value.parts:
        size = part.width or 0
        at -= size
        first, last = max(low, at), min(low + width, at + size)
        if first < last:
            parts.append(_part_of(part, first - at, last - first))
    return parts[0] if len(parts) == 1 else Expr("concat", parts=tuple(parts), width=width)


def _bits(number: str) -> str:
    """Binary digits of a sized number, high first."""
    width, _, digits = number.partition("'")
    base, digits = digits.lstrip("s")[0], digits.lstrip("s")[1:]
    if base == "d":
        bits = f"{int(digits):b}"
    else:
        size = {"b": 1, "o": 3, "h": 4}[base]
        bits = "".join(
            digit * size if digit in "xzXZ?" else f"{int(digit, 16):0{size}b}" for digit in digits
        )
    return bits[-int(width) :].zfill(int(width))


# -- registers and combinational processes ------------------------------------------------------
def _holds(each: Statement) -> bool:
    return each.kind == "=" and str(each.target) == str(each.value)


def _assigns_all(body: list[Statement], target: Expr) -> bool:
    """Each bit of ``target`` has an assignment somewhere in ``body``."""
    left = ((1 << (target.width or 0)) - 1) << target.low
    for each in body:
        for other in each.targets():
            if other.text == target.text:
                left &= ~(((1 << (other.width or 0)) - 1) << other.low)
    return not left


def _merge_registers(module: Module, processes: list[list[Statement]]) -> list[list[Statement]]:
    """Move the process of each next state into the block of its register; the other processes."""
    reads = module.reads() + collections.Counter(
        name
        for body in processes
        for each in body
        for e in each.expressions()
        for name in e.names()
    )
    by_target: dict[str, list[list[Statement]]] = {}  # bits of one signal may have a process each
    shared = set()
    for body in processes:
        names = {target.text for each in body for target in each.targets()}
        for name in names:
            by_target.setdefault(name, []).append(body)
        if len(names) > 1:
            shared |= names
    clocked, merged = [], set()
    for clock, body in module.clocked:
        (only, *others) = body
        following = only.value.text
        if (
            others
            or {only.kind, only.target.kind, only.value.kind} != {"=", "name"}
            or following not in by_target.keys() - shared
            or module.declared[following].kind != "reg"
            or reads[following] != 1
        ):
            clocked.append((clock, body))
            continue
        state = only.target.text
        bodies = [[s.retargeted(following, state) for s in each] for each in by_target[following]]
        for each in bodies:
            while each and _holds(each[0]) and _assigns_all(each[1:], each[0].target):
                each.pop(0)
        merged.add(following)
        clocked += [(clock, each) for each in bodies]
    module.clocked = clocked
    for name in merged:
        del module.declared[name]
    return [
        body
        for body in processes
        if not any(target.text in merged for each in body for target in each.targets())
    ]


def _continuous(module: Module, body: list[Statement]) -> None:
    """Assignments that say what the combinational process ``body`` does."""
    targets = [target for each in body for target in each.targets()]
    for name in dict.fromkeys(target.text for target in targets):
        known = module.declared[name]
        known.kind = {"reg": "wire", "output reg": "output"}.get(known.kind, known.kind)
        whole = known.width
        own = [target for target in targets if target.text == name]
        edges = sorted({edge for t in own for edge in (t.low, t.low + (t.width or 0))})
        for low, high in itertools.pairwise(edges):
            if not any(t.low < high and low < t.low + (t.width or 0) for t in own):
                continue  # driven elsewhere
            target = Expr("part", name, width=high - low, low=low)
            if high - low == whole:
                target = Expr("name", name, width=whole)
            value = _value(module, target, body, None)
            assert value is not None, f"{module.name}.{name} keeps its value"
            module.assigns.append((target, value))


def _substitution(name: str, value: Expr) -> Callable[[Expr], Expr]:
    return lambda each: value if each.text == name else each


def _value(module: Module, target: Expr, body: list[Statement], now: Expr | None) -> Expr | None:
    """What ``target`` is after ``body``, if it was ``now`` before; None: it has no value yet."""
    low, high = target.low, target.low + (target.width or 0)
    for each in body:
        if not any(
            t.text == target.text and t.low < high and low < t.low + (t.width or 0)
            for t in each.targets()
        ):
            continue
        if each.kind == "=":
            now = _part_of_any(each, low, high - low)
            continue
        before = now
        if now is not None and not now.is_atom:
            before = Expr("name", f"{target.text}_before", width=high - low)
            while before.text in module.declared:
                before = dataclasses.replace(before, text=f"{before.text}_")
            module.declared[before.text] = Declared("wire", high - low)
        result = before
        for condition, inner in reversed(list(_ways(each))):
            value = _value(module, target, inner, before)
            if condition is None or result is None:
                result = value
            elif value is not None and value != result:
                result = _choice(condition, value, result)
        if now is not None and before is not None and before is not now:
            name, held = before.text, now
            if result is not None and list(result.names()).count(name) > 1:
                module.assigns.append((before, held))
            else:
                del module.declared[name]
                result = result and result.replace(_substitution(name, held))
        now = result
    return now


def _part_of_any(each: Statement, low: int, width: int) -> Expr:
    """The bits that ``each`` assigns to ``width`` bits of the target from ``low`` on."""
    target, value = each.target, each.value
    if target.width == width:
        return value
    return _part_of(value, low - target.low, width)


def _ways(each: Statement) -> Iterator[tuple[Expr | None, list[Statement]]]:
    """(condition or None for else, body) of an "if" or a "case", in order of priority."""
    if each.kind == "if":
        yield from each.arms
        return
    for patterns, inner in each.arms:
        if patterns is None:
            yield None, inner
            continue
        condition = None
        for pattern in patterns:
            matches = _matches(each.value, pattern)
            condition = matches if condition is None else _operation("||", condition, matches)
        yield condition, inner


def _matches(selector: Expr, pattern: str) -> Expr:
    """Condition: ``selector`` is ``pattern``, in which ``?`` is any bit."""
    bits, width = _bits(pattern), selector.width or 0
    parts = selector.parts if selector.kind == "concat" else (selector,)
    if all(part.width == 1 for part in parts) and len(parts) == len(bits):
        found = None
        for part, bit in zip(parts, bits, strict=True):
            if bit != "?":
                each = part if bit == "1" else _operation("!", part)
                found = each if found is None else _operation("&&", found, each)
        return found if found is not None else Expr("number", "1'h1", width=1)
    if "?" not in bits:
        return _operation("==", selector, _number(bits))
    if selector.kind == "name" and bits.count("?") == width - 1:
        at = next(n for n, bit in enumerate(bits) if bit != "?")
        part = Expr("part", selector.text, width=1, low=width - 1 - at)
        return part if bits[at] == "1" else _operation("!", part)
    mask = bits.replace("0", "1").replace("?", "0")
    masked = _operation("&", selector, _number(mask))
    return _operation("==", masked, _number(bits.replace("?", "0")))


def _binary(bits: str) -> Expr:
    return Expr("number", f"{len(bits)}'b{bits}", width=len(bits))


def _number(bits: str) -> Expr:
    return Expr("number", f"{len(bits)}'h{int(bits, 2):0{-(-len(bits) // 4)}x}", width=len(bits))


# -- names --------------------------------------------------------------------------------------
def _use_fields(module: Module) -> None:
    """Write the name of a field in the place of the bits that it is."""
    fields: dict[tuple, str] = {}
    for target, value in module.assigns:
        if target.kind == "name" and value.kind == "part" and target.text not in module.unnamed:
            key = (value.text, value.low, value.width)
            if target.text.startswith(f"{value.text}__"):
                fields.setdefault(key, target.text)

    def named(each: Expr) -> Expr:
        if each.kind == "part" and (found := fields.get((each.text, each.low, each.width))):
            return Expr("name", found, width=each.width)
        return each

    own = [pair for pair in module.assigns if pair[0].text in set(fields.values())]
    module.assigns = [pair for pair in module.assigns if pair[0].text not in set(fields.values())]
    module._replace(named)
    module.assigns += own


def _name_by_instance(module: Module) -> None:
    """A wire ``pin_N`` at pin ``pin`` of an instance, and its fields, become ``instance__pin``."""
    names: dict[str, str] = {}
    for instance in module.instances:
        for pin, value in instance.connections.items():
            if value.kind == "name" and re.fullmatch(rf"{pin}_\d+", value.text) and (
                module.declared[value.text].kind == "wire"
            ):  # fmt: skip
                names.setdefault(value.text, f"{instance.name}__{pin}")
    if not names:
        return
    changed: dict[str, str] = {}
    for name in list(module.declared):
        stem = name.partition("__")[0]
        for whole in (name, *(name[: at.start()] for at in re.finditer("__", name))):
            if whole in names:
                stem = names[whole] + name[len(whole) :]
                changed[name] = _fresh(stem, module.declared)
                module.declared[changed[name]] = module.declared[name]
                break
    module.declared = {n: d for n, d in module.declared.items() if n not in changed}
    _renamed(module, changed)


def _renamed(module: Module, names: dict[str, str]) -> None:
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


def _is_closed(value: Expr, width: int) -> bool:
    """``value`` means the same in any expression."""
    if value.width != width or value.kind in ("raw", "signed"):
        return False
    if value.is_atom or value.kind == "concat":
        return True
    if value.kind == "?":
        return all(_is_closed(part, width) for part in value.parts[1:])
    if value.text in _BITWISE and len(value.parts) == 2:
        return all(_is_closed(part, width) for part in value.parts)
    return value.text in _COMPARISONS or (len(value.parts) == 1 and value.text in _REDUCTIONS)


def _inline(module: Module) -> None:
    """Put the value of each unnamed wire where it is read, if that is one place or it is short."""
    reads = module.reads()
    values = {}
    drivers = collections.Counter(target.text for target, _ in module.assigns)
    for target, value in module.assigns:
        if target.kind == "name" and target.text in module.unnamed and drivers[target.text] == 1:
            values[target.text] = value
    done: dict[str, Expr] = {}

    def settled(name: str) -> Expr | None:
        """The value of wire ``name`` if it may be written in the place of the wire."""
        if name not in values:
            return None
        if name not in done:
            done[name] = Expr("raw", name)  # not within itself
            done[name] = visit(values[name], module.declared[name].width)
        return done[name]

    def fits(value: Expr, name: str) -> bool:
        if value.is_atom or (value.text == "!" and value.parts[0].is_atom):
            return True
        return (
            reads[name] == 1 and value.depth < _DEPTH_MAX and len(str(value)) <= _LENGTH_MAX
            and value.kind != "raw"
        )  # fmt: skip

    def visit(each: Expr, width: int | None) -> Expr:
        """width: of what alone surrounds ``each``; None: an operator may widen it."""
        if each.kind == "name":
            value = settled(each.text)
            if value is None or not fits(value, each.text):
                return each
            if _is_closed(value, each.width or 0):
                return value
            # An assignment to as many bits widens it as the wire did. A concatenation widens
            # nothing.
            if width == each.width and (width is not None):
                return value
            return each
        if each.kind == "part":
            value = settled(each.text)
            if value is not None and value.kind in ("name", "part"):
                if value.kind == "name" and value.width == each.width:
                    return value
                return Expr("part", value.text, width=each.width, low=value.low + each.low)
            return each
        if not each.parts or each.kind == "raw":
            return each
        return dataclasses.replace(
            each, parts=tuple(visit_inner(each, n) for n in range(len(each.parts)))
        )

    def visit_inner(each: Expr, n: int) -> Expr:
        part = each.parts[n]
        alone = (
            each.kind in ("concat", "signed")
            or (each.kind == "?" and n == 0)
            or (len(each.parts) == 1 and each.text in _REDUCTIONS)
        )
        found = visit(part, None)
        if alone and found is part and part.kind == "name":
            value = settled(part.text)
            if value is not None and fits(value, part.text) and value.width == part.width:
                return value
        return found

    for name in children_first(values):  # so that no call nests deeply
        settled(name)
    module.assigns = [(target, visit(value, target.width)) for target, value in module.assigns]

    def statement(each: Statement) -> Statement:
        arms = [
            (visit(selects, 1) if each.kind == "if" and selects is not None else selects,
             [statement(inner) for inner in body])
            for selects, body in each.arms
        ]  # fmt: skip
        value = visit(each.value, each.target.width)
        return Statement(each.kind, each.target, value, arms)

    module.clocked = [(clk, [statement(each) for each in body]) for clk, body in module.clocked]
    for instance in module.instances:
        instance.connections = {p: visit(e, None) for p, e in instance.connections.items()}


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


def _drop_unread(module: Module) -> None:
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


def _rename(module: Module) -> None:
    """Give the wires that are left without a name one that says what makes them."""
    names: dict[str, str] = {}
    for target, value in module.assigns:
        if target.text in module.unnamed and target.text not in names:
            is_operator = value.kind in ("op", "?")
            word = _WORDS.get(value.text, "is") if is_operator else "part"
            if is_operator and len(value.parts) == 1 and value.width == 1:
                word = "is"
            stem = f"{word}{target.text}"
            names[target.text] = _fresh(stem, module.declared)
            module.declared[names[target.text]] = module.declared.pop(target.text)

    _renamed(module, names)
    module.unnamed = set(names.values())


def rewrite(text: str) -> Module:
    """The module ``text``, as Yosys writes it for ``hdl.back.verilog``, as parts for a reader."""
    # A look-up of many rows is one choice within another.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _NESTING))
    module, processes = _read(text)
    for body in _merge_registers(module, processes):
        _continuous(module, body)
    _use_fields(module)
    _inline(module)
    _drop_unread(module)
    _name_by_instance(module)
    _rename(module)
    return module
