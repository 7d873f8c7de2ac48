"""RTLIL of Amaranth -> modules as parts, which ``hdl.back.render`` writes as Verilog-2005.

RTLIL is a text of one item per line: wires, cells, processes of one target each, connections. A
signal is a wire, or bits ``[high:low]`` of one, or a constant, or several of these in braces, the
highest first. ``read`` keeps every name of the source. The value of an operator without a name
becomes part of the expression that reads it.

What no registered block has is refused with NotImplementedError.
"""

import collections
import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterator

from hdl.back.inline import COMPARISONS, SHIFTS, fold, inline, join_parts, narrow, use_selects
from hdl.back.keywords import KEYWORDS
from hdl.back.module import (
    Declared,
    Expr,
    Instance,
    Module,
    Statement,
    bits_of,
    choice,
    drop_unread,
    fresh,
    number,
    operation,
    part_of,
    signed_of,
)  # fmt: skip
from hdl.back.naming import name_by_instance, name_states, rename, use_names

_CHUNK = re.compile(r"(\d+)'([01x]*)|([\\$]\S+)(?: \[(\d+)(?::(\d+))?\])?")
_UNNAMED = re.compile(r"\$(\d+)")
_BINARY = {
    "$add": "+", "$sub": "-", "$mul": "*", "$and": "&", "$or": "|", "$xor": "^", "$shl": "<<",
    "$shr": ">>", "$sshr": ">>>", "$shift": ">>", "$divfloor": "/", "$modfloor": "%",
    "$eq": "==", "$ne": "!=", "$lt": "<", "$gt": ">", "$le": "<=", "$ge": ">=",
}  # fmt: skip
_UNARY = {"$not": "~", "$neg": "-", "$reduce_and": "&", "$reduce_or": "|", "$reduce_xor": "^"}
_NESTING = 10_000


class _Reader:
    """One module of the text."""

    def __init__(self, lines: Iterator[str], name: str):
        self.name = name
        self.wires: dict[str, tuple[str, int]] = {}  # raw name -> kind and width
        self.names: dict[str, str] = {}  # raw name -> name in the text
        self.ports: list[str] = []
        self.cells: list[tuple[str, str, dict[str, str], dict[str, str]]] = []
        self.processes: list[list] = []
        self.connects: list[tuple[str, str]] = []
        self.memories: dict[str, tuple[int, int]] = {}
        self.values: dict[str, dict[str, str]] = {}  # wire -> name of a value -> its bits
        self._lines = lines
        self._signals: dict[str, Expr] = {}
        self._scan()

    def _scan(self) -> None:
        pending: dict[str, str] = {}
        for line in self._lines:
            word, _, rest = line.partition(" ")
            if word == "attribute":
                if rest.startswith("\\enum_value_"):
                    bits, _, name = rest[12:].partition(" ")
                    pending[name.strip('"')] = bits
                continue
            if word == "wire":
                *head, raw = rest.split()
                if pending:
                    self.values[raw] = pending
                kind = next((each for each in head if each in ("input", "output")), "wire")
                self.wires[raw] = (kind, int(head[1]))
            elif word == "cell":
                self.cells.append(self._cell(rest))
            elif word == "process":
                self.processes.append(self._block("end")[0])
            elif word == "connect":
                left, _, right = rest.partition(" ")
                if right.startswith("["):  # a part of a wire
                    raise NotImplementedError(f"{self.name}: connect {rest}")
                self.connects.append((left, right))
            elif word == "memory":
                _, width, _, depth, raw = rest.split()
                self.memories[raw] = (int(width), int(depth))
            elif word == "end":
                return
            else:
                raise NotImplementedError(f"{self.name}: {line}")
            pending = {}

    def _cell(self, head: str) -> tuple[str, str, dict[str, str], dict[str, str]]:
        kind, _, name = head.partition(" ")
        parameters: dict[str, str] = {}
        pins: dict[str, str] = {}
        for line in self._lines:
            if line == "end":
                break
            word, _, rest = line.partition(" ")
            key, _, value = rest.partition(" ")
            (pins if word == "connect" else parameters)[key[1:]] = value
        return kind, name, parameters, pins

    def _block(self, *ends: str) -> tuple[list, str]:
        """Assignments and switches up to a line that begins with one of ``ends``, and the line."""
        found: list = []
        for line in self._lines:
            word, _, rest = line.partition(" ")
            if word in ends:
                return found, line
            if word == "assign":
                found.append(rest)
            elif word == "switch":
                arms, line = [], next(self._lines)
                while line != "end":
                    patterns = line[5:].split(", ") if line != "case" else None
                    body, line = self._block("case", "end")
                    arms.append((patterns, body))
                found.append((rest, arms))
        raise NotImplementedError(f"{self.name}: a process without an end")

    # -- signals --------------------------------------------------------------------------------
    def plain(self) -> set[str]:
        """Give each raw name one of letters, digits and ``_`` alone; those that had a number."""
        raw = {*self.wires, *self.memories}
        known = {kind[1:] for kind, *_ in self.cells if kind.startswith("\\")}
        for kind, name, _, pins in self.cells:
            if kind.startswith("\\"):
                raw.add(name)
                known |= pins.keys()
        taken = {
            name[1:] for name in raw
            if re.fullmatch(r"\\[A-Za-z_]\w*", name) and name[1:] not in KEYWORDS
            and not re.fullmatch(r"\\_\d+_", name)
        } | known  # fmt: skip
        self.names = {name: name[1:] for name in raw if name[1:] in taken and name[0] == "\\"}
        unnamed = set()
        for name in sorted(raw - self.names.keys(), key=lambda each: each.removeprefix("\\")):
            digits = _UNNAMED.fullmatch(name)
            stem = re.sub(r"\W+", "_", name.replace(".", "__")).strip("_")
            stem = f"_{digits[1]}" if digits else f"word_{stem}" if stem[:1].isdigit() else stem
            self.names[name] = fresh(stem, taken)
            taken.add(self.names[name])
            if digits:
                unnamed.add(self.names[name])
        return unnamed

    def signal(self, text: str) -> Expr:
        found = self._signals.get(text)
        if found is None:
            found = self._signals[text] = self._signal(text)
        return found

    def _signal(self, text: str) -> Expr:
        parts = []
        for width, bits, raw, high, low in _CHUNK.findall(text):
            if not raw:
                if int(width):
                    parts.append(number(bits))
                continue
            whole = self.wires[raw][1]
            first = int(low or high or 0)
            size = int(high) - first + 1 if high else whole
            if size == whole:
                parts.append(Expr("name", self.names[raw], width=whole))
            else:
                parts.append(Expr("part", self.names[raw], width=size, low=first))
        if not parts:
            return Expr("number", "1'h0", width=1)
        if len(parts) == 1:
            return parts[0]
        return Expr("concat", parts=tuple(parts), width=sum(part.width or 0 for part in parts))

    # -- operators ------------------------------------------------------------------------------
    def operator(self, kind: str, parameters: dict[str, str], pins: dict[str, str]) -> Expr:
        """The value of a cell; its width is that of RTLIL, as are those of its operands."""
        if kind == "$mux":
            no, yes = self.signal(pins["A"]), self.signal(pins["B"])
            return Expr("?", "?", (self.signal(pins["S"]), yes, no), int(parameters["WIDTH"]))
        width, left = int(parameters["Y_WIDTH"]), self.signal(pins["A"])
        is_signed = parameters["A_SIGNED"] == "1"
        if kind in ("$reduce_bool", "$reduce_or") and width == 1:
            return left if left.width == 1 else _is_not_zero(left, kind)
        if kind in _UNARY:
            if width == 1 and left.width == 1 and kind == "$not":
                return Expr("op", "!", (left,), 1)
            wide = kind in ("$reduce_and", "$reduce_xor")
            if kind != "$neg" and (is_signed or (width != 1 if wide else width != left.width)):
                raise NotImplementedError(f"{self.name}: {kind} of another width")
            return Expr("op", _UNARY[kind], (signed_of(left) if is_signed else left,), width)
        if kind not in _BINARY:
            raise NotImplementedError(f"{self.name}: a cell {kind}")
        right, text = self.signal(pins["B"]), _BINARY[kind]
        if text in SHIFTS:
            if text == ">>" and is_signed and (left.width or 0) >= width:
                is_signed = False
            parts = signed_of(left) if is_signed else left, right
            if text == ">>>" and not is_signed:
                text = ">>"
            return Expr("op", text, parts, width)
        if text in COMPARISONS and pins["B"] == "{  }" and text in ("==", "!=") and not is_signed:
            if left.width == 1:
                return left if text == "!=" else Expr("op", "!", (left,), 1)
            return Expr("op", text, (left, number("0" * (left.width or 1))), 1)
        if is_signed and text in "/%":
            raise NotImplementedError(f"{self.name}: {kind} of signed words")
        if is_signed and (text not in ("==", "!=") or left.width != right.width):
            left, right = signed_of(left), signed_of(right)
        return Expr("op", text, (left, right), width)


def _is_not_zero(value: Expr, kind: str) -> Expr:
    if kind == "$reduce_or":
        return Expr("op", "|", (value,), 1)
    return Expr("op", "!=", (value, number("0" * (value.width or 1))), 1)


def _statements(reader: _Reader, body: list) -> list[Statement]:
    found: list[Statement] = []
    for each in body:
        if isinstance(each, str):
            left = re.match(r"\S+(?: \[[\d:]+\])?", each)
            assert left is not None
            value = reader.signal(each[left.end() + 1 :])
            found.append(Statement("=", reader.signal(left[0]), value))
            continue
        selects, raw = each
        arms = [(patterns, _statements(reader, inner)) for patterns, inner in raw]
        if not selects.strip("{ }"):  # assignments after a switch
            found += arms[0][1] if arms else []
            continue
        if not any(inner for _, inner in arms):
            continue
        found.append(_switch(reader.signal(selects), arms))
    return found


def _switch(selector: Expr, arms: list[tuple]) -> Statement:
    """An "if" where each pattern has one bit that matters, as those of If and Elif; or a "case"."""
    bits = _single_bits(selector)
    chain: list[tuple] = []
    for patterns, body in arms:
        if patterns is None:
            chain.append((None, body))
            break
        text = patterns[0].partition("'")[2]
        care = [at for at, bit in enumerate(text) if bit != "-"]
        if len(patterns) != 1 or len(care) != 1 or not bits:
            break
        bit = bits[care[0]]
        chain.append((bit if text[care[0]] == "1" else Expr("op", "!", (bit,), 1), body))
    else:
        patterns = []
    if patterns is None or not patterns:
        return Statement("if", arms=_closed_chain(chain, selector))
    arms = [(texts and [_pattern(each) for each in texts], body) for texts, body in arms]
    case = Statement("case", value=selector, arms=arms)
    # The first pattern that fits counts, and lint finds a casez whose patterns overlap.
    return Statement("if", arms=list(_ways(case))) if _overlaps(arms) else case


def _overlaps(arms: list[tuple]) -> bool:
    """Whether a value fits two patterns with ``?`` in them, such as ``2'b?1`` and ``2'b1?``."""
    every = [each for patterns, _ in arms for each in patterns or () if "?" in each]
    return any(
        all(a == b or "?" in (a, b) for a, b in zip(bits_of(one), bits_of(other), strict=True))
        for one, other in itertools.combinations(every, 2)
    )


def _closed_chain(chain: list[tuple], selector: Expr) -> list[tuple]:
    """Drops arms that do nothing at the end; ``else`` replaces the opposite of ``if``."""
    if chain and not chain[-1][1]:
        return _closed_chain(chain[:-1], selector)
    if len(chain) == 2 and selector.width == 1 and chain[1][0] is not None:
        return [chain[0], (None, chain[1][1])]
    return chain


def _pattern(text: str) -> str:
    width, _, bits = text.partition("'")
    if "-" in bits:
        return f"{width}'b{bits.replace('-', '?')}"
    return str(number(bits))


def _single_bits(selector: Expr) -> list[Expr]:
    """The bits of ``selector``, highest first, if each is a signal of its own."""
    parts = selector.parts if selector.kind == "concat" else (selector,)
    found = []
    for part in parts:
        if part.kind == "number" or part.width != 1:
            return []
        found.append(part)
    return found


def read(text: str) -> list[Module]:
    """The modules of ``text``, RTLIL as Amaranth writes it, as parts for a reader."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _NESTING))
    lines = filter(None, map(str.strip, text.splitlines()))
    found = []
    for line in lines:
        if line.startswith("module "):
            found.append(_module(_Reader(lines, line[8:])))
    return found


def _module(reader: _Reader) -> Module:
    unnamed = reader.plain()
    declared, ports = {}, []
    for raw, (kind, width) in reader.wires.items():
        name = reader.names[raw]
        if width:
            declared[name] = Declared(kind, width)
            if kind != "wire":
                ports.append(name)
    module = Module(reader.name, ports, declared, [], [], [], unnamed)
    for raw, (width, depth) in reader.memories.items():
        declared[reader.names[raw]] = Declared("reg", width, depth)
    _cells(reader, module)
    aliases = _aliases(reader, module)
    use_names(module, aliases)
    fold(module)
    join_parts(module)
    narrow(module)
    inline(module)
    drop_unread(module)
    name_by_instance(module)
    rename(module)
    use_selects(module)
    name_states(module, {reader.names[raw]: values for raw, values in reader.values.items()})
    return module


def _cells(reader: _Reader, module: Module) -> None:
    bodies = {}
    for raw in reader.processes:
        body = _statements(reader, raw)
        bodies[body[0].target.text] = body
    reads: collections.Counter[str] = collections.Counter()
    registers = []
    for kind, name, parameters, pins in reader.cells:
        if kind.startswith("\\"):
            connections = {
                pin: reader.signal(value) for pin, value in pins.items() if value != "{  }"
            }
            module.instances.append(Instance(kind[1:], reader.names[name], connections))
        elif kind == "$dff":
            if parameters["CLK_POLARITY"] != "1":
                raise NotImplementedError(f"{module.name}: a register of a falling edge")
            registers.append(tuple(reader.signal(pins[pin]) for pin in ("Q", "D", "CLK")))
        elif kind == "$memwr_v2":
            module.clocked += _writes(reader, parameters, pins)
        elif kind == "$memrd_v2" and parameters["CLK_ENABLE"] == "0":
            source, _ = _index(reader, parameters, pins)
            word = reader.signal(pins["DATA"])
            module.assigns.append((word, Expr("raw", source, width=word.width)))
        elif kind == "$memrd_v2":
            module.clocked.append(_read_port(reader, module, parameters, pins))
        elif kind != "$meminit_v2":
            value = reader.operator(kind, parameters, pins)
            module.assigns.append((reader.signal(pins["Y"]), value))
    memory_count = len(module.clocked)
    memories, module.clocked = module.clocked, []
    for body in bodies.values():
        for each in body:
            reads.update(name for value in each.expressions() for name in value.names())
    reads += module.reads()
    reads.update(name for _, data, _ in registers for name in data.names())
    reads.update(name for _, value in reader.connects for name in reader.signal(value).names())
    for state, data, clock in registers:
        known = module.declared[state.text]
        known.kind = "output reg" if known.kind == "output" else "reg"
        body = [Statement("=", state, data)]
        if data.kind == "name" and data.text in bodies and reads[data.text] == 1:
            body = [each.retargeted(data.text, state.text) for each in bodies.pop(data.text)]
            del module.declared[data.text]
            while body and _holds(body[0]):
                body.pop(0)
        if body:
            module.clocked.append((clock.text, body))
    assert memory_count == len(memories)
    module.clocked += memories
    for body in bodies.values():
        _continuous(module, [_with_default(each) for each in body])


def _with_default(each: Statement) -> Statement:
    """The last arm of a case that has every pattern is that for all others."""
    arms = [(selects, [_with_default(one) for one in body]) for selects, body in each.arms]
    if each.kind == "case" and all(patterns is not None for patterns, _ in arms):
        patterns = {pattern for patterns, _ in arms for pattern in patterns}
        is_exact = not any("?" in pattern for pattern in patterns)
        if is_exact and len(patterns) == 1 << (each.value.width or 0):
            arms[-1] = (None, arms[-1][1])
    return Statement(each.kind, each.target, each.value, arms)


def _index(reader: _Reader, parameters: dict[str, str], pins: dict[str, str]) -> tuple[str, Expr]:
    memory = parameters["MEMID"].strip('"').replace("\\\\", "\\")
    address = reader.signal(pins["ADDR"])
    return f"{reader.names[memory]}[{address}]", address


def _writes(reader: _Reader, parameters: dict, pins: dict) -> Iterator[tuple[str, list[Statement]]]:
    """One block per run of bits that one signal enables."""
    target, _ = _index(reader, parameters, pins)
    data, enable = reader.signal(pins["DATA"]), reader.signal(pins["EN"])
    bits = [part_of(enable, at, 1) for at in range(enable.width or 0)]
    clock, at, width = reader.signal(pins["CLK"]).text, 0, data.width or 0
    if parameters["CLK_POLARITY"] != "1":
        raise NotImplementedError(f"{reader.name}: a write port of a falling edge")
    while at < width:
        end = at + 1
        while end < width and bits[end] == bits[at]:
            end += 1
        part = "" if end - at == width else f"[{end - 1}:{at}]" if end - at > 1 else f"[{at}]"
        word = Expr("raw", f"{target}{part}", width=end - at)
        value = part_of(data, at, end - at)
        yield clock, [Statement("if", arms=[(bits[at], [Statement("=", word, value)])])]
        at = end


def _read_port(reader: _Reader, module: Module, parameters: dict, pins: dict):
    if (
        parameters["CLK_ENABLE"] != "1" or parameters["CLK_POLARITY"] != "1"
        or "1" in parameters["TRANSPARENCY_MASK"].partition("'")[2]
        or (pins["ARST"], pins["SRST"]) != ("1'0", "1'0")
    ):  # fmt: skip
        raise NotImplementedError(f"{reader.name}: a read port that is transparent or resets")
    source, _ = _index(reader, parameters, pins)
    word = reader.signal(pins["DATA"])
    known = module.declared[word.text]
    known.kind = "output reg" if known.kind == "output" else "reg"
    held = Statement("=", word, Expr("raw", source, width=word.width))
    body, enable = [held], reader.signal(pins["EN"])
    if enable.kind != "number":
        body = [Statement("if", arms=[(enable, [held])])]
    return reader.signal(pins["CLK"]).text, body


def _aliases(reader: _Reader, module: Module) -> dict[tuple, str]:
    """Assign what ``connect`` says; (wire, low, width) -> the name that the source has for it."""
    found: dict[tuple, str] = {}
    for left, right in reader.connects:
        target, value = reader.signal(left), reader.signal(right)
        if reader.wires[left][1] == 0:
            continue
        module.assigns.append((target, value))
        if value.kind != "part":
            continue
        if value.text in module.unnamed or target.text.startswith(f"{value.text}__"):
            found.setdefault((value.text, value.low, value.width), target.text)
    return found


def _holds(each: Statement) -> bool:
    return each.kind == "=" and str(each.target) == str(each.value)


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
    """The value of ``target`` after ``body`` if it was ``now`` before; None: it has none yet."""
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
                result = choice(condition, value, result)
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
    return part_of(value, low - target.low, width)


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
            condition = matches if condition is None else operation("||", condition, matches)
        yield condition, inner


def _matches(selector: Expr, pattern: str) -> Expr:
    """Condition: ``selector`` is ``pattern``, in which ``?`` is any bit."""
    bits, width = bits_of(pattern), selector.width or 0
    parts = selector.parts if selector.kind == "concat" else (selector,)
    if all(part.width == 1 for part in parts) and len(parts) == len(bits):
        found = None
        for part, bit in zip(parts, bits, strict=True):
            if bit != "?":
                each = part if bit == "1" else operation("!", part)
                found = each if found is None else operation("&&", found, each)
        return found if found is not None else Expr("number", "1'h1", width=1)
    if "?" not in bits:
        return operation("==", selector, number(bits))
    if selector.kind == "name" and bits.count("?") == width - 1:
        at = next(n for n, bit in enumerate(bits) if bit != "?")
        part = Expr("part", selector.text, width=1, low=width - 1 - at)
        return part if bits[at] == "1" else operation("!", part)
    mask = bits.replace("0", "1").replace("?", "0")
    masked = operation("&", selector, number(mask))
    return operation("==", masked, number(bits.replace("?", "0")))
