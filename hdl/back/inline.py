"""Expressions of a module, each where it is read: constants, widths, and what becomes a wire.

Widths are exact. A cell of RTLIL gives its operands and its result a width each. In Verilog the
surroundings of an operator decide its width. So an operator moves into another expression only
where ``_Inliner.context`` shows that the surroundings have the bits that it needs:

| operators | their low bits are right |
|---|---|
| ``+ - * & \\| ^ ~ << ?:`` | in surroundings of as many bits, or more |
| ``>> / %`` | where the surroundings have all bits of the operands |
| comparisons, reductions, ``!`` | anywhere: one bit |
| with ``$signed`` | alone in an assignment of their width, or less; comparisons anywhere |
"""

import collections
import dataclasses

from hdl.back.module import (
    Expr,
    Module,
    Statement,
    bits_of,
    children_first,
    is_leaf,
    is_signed,
    low_bits,
    number,
    part_of,
    signed_of,
    unsigned_of,
    values_of,
)  # fmt: skip

_DEPTH_MAX = 4  # operators within each other
_LENGTH_MAX = 90  # characters of an expression that becomes part of another
_SHORT = 32  # characters of an expression that may be written twice
_MODULAR = frozenset("+ - * & | ^ ~ <<".split())
COMPARISONS = frozenset(["==", "!=", "<", ">", "<=", ">="])
SHIFTS = frozenset(["<<", ">>", ">>>"])
_OPPOSITES = {"==": "!=", "!=": "=="}


def _is_zero(value: Expr) -> bool:
    return value.kind == "number" and "1" not in bits_of(value.text)


def _is_ones(value: Expr) -> bool:
    return value.kind == "number" and "0" not in bits_of(value.text)


def _folded(value: Expr) -> Expr:
    """``value`` without what constants and equal ways decide."""
    if value.kind == "?":
        condition, yes, no = value.parts
        if yes == no:
            return yes
        if condition.kind == "number":
            return no if _is_zero(condition) else yes
        if value.width == 1 and {yes.kind, no.kind} == {"number"}:
            return Expr("op", "!", (condition,), 1) if _is_zero(yes) else condition
        if value.width == 1 and _is_zero(no):
            return Expr("op", "&&", (condition, yes), 1)
        if no.kind == "?" and no.parts[1] == yes:
            either = Expr("op", "||", (condition, no.parts[0]), 1)
            return Expr("?", "?", (either, yes, no.parts[2]), value.width)
        return value
    if value.kind != "op" or "x" in "".join(p.text for p in value.parts if p.kind == "number"):
        return value
    if value.text == "!":
        (inner,) = value.parts
        if inner.kind == "number":
            return number("1" if _is_zero(inner) else "0")
        if inner.kind == "op" and inner.text == "!":
            return inner.parts[0]
        if inner.kind == "op" and inner.text in _OPPOSITES:
            return dataclasses.replace(inner, text=_OPPOSITES[inner.text])
        return value
    if value.text in ("&", "|", "^", "&&", "||") and len(value.parts) == 2:
        left, right = value.parts
        if _is_zero(left) or (_is_ones(left) and value.text != "^"):
            left, right = right, left
        if left.width != value.width or right.width != value.width:
            return value
        if _is_zero(right):
            return right if value.text in ("&", "&&") else left
        if _is_ones(right) and value.text != "^":
            return left if value.text in ("&", "&&") else right
    return value


def fold(module: Module) -> None:
    """Put constants in the place of wires that have one, and simplify."""
    values = values_of(module)
    constants: dict[str, Expr] = {}

    def replaced(each: Expr) -> Expr:
        if each.kind in ("name", "part") and (known := constants.get(each.text)):
            return part_of(known, each.low, each.width or 0)
        if each.kind == "concat" and all(part.kind == "number" for part in each.parts):
            return number("".join(bits_of(part.text) for part in each.parts))
        return _folded(each)

    for name in children_first(values):
        values[name] = values[name].replace(replaced)
        if values[name].kind == "number" and "'s" not in values[name].text:
            constants[name] = values[name]
    module.assigns = [
        (t, values[t.text]) if t.kind == "name" and t.text in values else (t, v.replace(replaced))
        for t, v in module.assigns
    ]
    module.replace_elsewhere(replaced)


def join_parts(module: Module) -> None:
    """Make one of assignments to neighbouring parts from neighbouring parts."""
    made: list[tuple[Expr, Expr]] = []
    for target, value in module.assigns:
        if made and target.kind == value.kind == "part":
            (first, source), high = made[-1], made[-1][0].low + (made[-1][0].width or 0)
            if (
                first.kind == source.kind == "part" and first.text == target.text
                and source.text == value.text and target.low == high
                and value.low == source.low + (source.width or 0)
            ):  # fmt: skip
                width = (first.width or 0) + (target.width or 0)
                made[-1] = tuple(  # type: ignore[assignment]
                    Expr("name", each.text, width=width)
                    if width == module.declared[each.text].width
                    else dataclasses.replace(each, width=width)
                    for each in (first, source)
                )
                continue
        made.append((target, value))
    module.assigns = made


class _Narrower:
    """Takes from unnamed wires the high bits that nothing reads."""

    def __init__(self, module: Module):
        self.module, self.values = module, values_of(module)
        self.needed: collections.Counter[str] = collections.Counter()

    def _need(self, value: Expr) -> None:
        if value.kind in ("name", "part"):
            high = value.low + (value.width or 0)
            self.needed[value.text] = max(self.needed[value.text], high)
        elif value.kind == "raw":
            for name in value.names():
                self.needed[name] = 1 << 30
        for part in value.parts:
            self._need(part)

    def run(self) -> None:
        module, values = self.module, self.values
        own = [v for t, v in module.assigns if not (t.kind == "name" and t.text in values)]
        saved, module.assigns = module.assigns, []
        for value in (*own, *module.read()):
            self._need(value)
        module.assigns = saved
        for name in reversed(children_first(values)):
            value, width = values[name], self.needed[name]
            if 0 < width < module.declared[name].width:
                narrow = _narrowed(value, width)
                if narrow is not None:
                    values[name] = narrow
                    module.declared[name].width = width
            if width:
                self._need(values[name])
        module.assigns = [
            (Expr("name", t.text, width=module.declared[t.text].width), values[t.text])
            if t.kind == "name" and t.text in values else (t, v)
            for t, v in module.assigns
        ]  # fmt: skip

        def whole(each: Expr) -> Expr:
            if each.kind == "part" and not each.low and (
                each.width == module.declared[each.text].width
            ):  # fmt: skip
                return Expr("name", each.text, width=each.width)
            return each

        module._replace(whole)


def _narrowed(value: Expr, width: int) -> Expr | None:
    """The low ``width`` bits of ``value``; None if they need the others."""
    if is_leaf(value):
        return low_bits(value, width)
    if value.kind == "?":
        condition, yes, no = value.parts
        ways = _narrowed(yes, width), _narrowed(no, width)
        if None in ways:
            return None
        return Expr("?", "?", (condition, *ways), width)  # type: ignore[arg-type]
    if value.kind != "op" or value.text not in _MODULAR or (
        len(value.parts) == 1 and value.text not in "~-"
    ):  # fmt: skip
        return None
    parts = []
    for place, part in enumerate(value.parts):
        if place == 0 or value.text != "<<":
            if is_signed(part):
                inner = unsigned_of(part)
                if (inner.width or 0) > width:
                    inner = low_bits(inner, width)
                part = signed_of(inner)
            elif (part.width or 0) > width:
                if not is_leaf(part):
                    return None
                part = low_bits(part, width)
        parts.append(part)
    extended = parts[:1] if value.text == "<<" else parts
    if all(is_signed(part) and part.width == width for part in extended):
        parts = [*map(unsigned_of, extended), *parts[len(extended) :]]
    return Expr("op", value.text, tuple(parts), width)


class _Inliner:
    """Puts the value of each unnamed wire where it is read, if that is one place or it is short."""

    def __init__(self, module: Module):
        self.module, self.values = module, values_of(module)
        self.reads = module.reads()
        self.done: dict[str, Expr] = {}  # name -> value, its own operands in place

    def run(self) -> None:
        module = self.module
        for name in children_first(self.values):
            self.done[name] = self.top(self.values[name], module.declared[name].width)
        module.assigns = [
            (t, self.done[t.text] if t.kind == "name" and t.text in self.done
             else self.top(v, t.width or 0))
            for t, v in module.assigns
        ]  # fmt: skip

        def statement(each: Statement) -> Statement:
            arms = [
                (self.alone(selects) if each.kind == "if" and selects is not None else selects,
                 [statement(inner) for inner in body])
                for selects, body in each.arms
            ]  # fmt: skip
            if each.kind == "=":
                value = self.top(each.value, each.target.width or 0)
            else:
                value = self.alone(each.value) if each.kind == "case" else each.value
            return Statement(each.kind, each.target, value, arms)

        module.clocked = [(clk, [statement(each) for each in body]) for clk, body in module.clocked]
        for instance in module.instances:
            connections = instance.connections
            instance.connections = {pin: self.alone(each) for pin, each in connections.items()}

    # -- what may move --------------------------------------------------------------------------
    def _settled(self, value: Expr) -> Expr | None:
        """The substitute, unlimited, for a read of all or of the low bits of an unnamed wire."""
        if value.kind not in ("name", "part") or value.low or value.text not in self.values:
            return None
        found = self.values[value.text]
        done = self.done.get(value.text)
        if done is None:
            return None
        if done.is_atom or (done.text == "!" and done.parts[0].is_atom):
            return found
        is_short = done.depth <= 1 and len(str(done)) <= _SHORT and done.kind == "op" and (
            done.text in COMPARISONS or (done.text in ("&", "|") and done.width == 1)
        )  # fmt: skip
        if is_short and self.reads[value.text] == 2:
            return found
        if (
            self.reads[value.text] == 1 and done.depth < _DEPTH_MAX
            and len(str(done)) <= _LENGTH_MAX
        ):  # fmt: skip
            return found
        return None

    def top(self, value: Expr, width: int) -> Expr:
        """Inlines into ``value`` where it is assigned to ``width`` bits."""
        inner = value
        while (settled := self._settled(inner)) is not None:
            if inner.width != settled.width:
                narrow = _narrowed(settled, inner.width or 0)
                if narrow is None:
                    break
                settled = narrow
            inner = settled
        if inner.kind == "op" and inner.text in SHIFTS - {"<<"} and inner.width == width:
            first, amount = inner.parts
            if is_signed(first):
                return Expr("op", inner.text, (self._signed(first), self.alone(amount)), width)
            return Expr("op", inner.text, (self._whole(first, width), self.alone(amount)), width)
        if inner.kind == "op" and inner.text in "/%" and inner.width == width:
            wide = max(width, *(part.width or 0 for part in inner.parts))
            parts = tuple(self._whole(part, wide) for part in inner.parts)
            return Expr("op", inner.text, parts, wide)
        if inner.kind == "op" and inner.text not in COMPARISONS and (
            any(map(is_signed, inner.parts)) and inner.width == width
        ):  # fmt: skip
            if inner.text == "<<":
                first, amount = self._signed(inner.parts[0]), self.alone(inner.parts[1])
                return Expr("op", "<<", (first, amount), first.width)
            parts = tuple(self._signed(part) for part in inner.parts)
            return Expr("op", inner.text, parts, max(part.width or 0 for part in parts))
        return self.context(inner, width) or self.context(value, width) or value

    def _signed(self, part: Expr) -> Expr:
        if part.kind == "signed":
            return Expr("signed", "$signed", (self.alone(part.parts[0]),), part.width)
        assert part.kind == "number"
        return part

    def alone(self, value: Expr) -> Expr:
        """Inlines into what nothing around widens: a condition, part of a concatenation, a pin."""
        width = value.width or 0
        made = self.context(value, width)
        if made is not None and (made.width or 0) < width:
            made = _padded(made, width)
        return made or value

    def _whole(self, value: Expr, width: int) -> Expr:
        """All bits of ``value``, where the target has ``width`` bits, which may be fewer."""
        wide = max(width, value.width or 0)
        made = self.context(value, wide) or value
        return made if (made.width or 0) >= wide or wide == width else _padded(made, wide)

    def context(self, value: Expr, width: int) -> Expr | None:
        """Right, and no wider than ``width``, where the surroundings have ``width`` bits.

        None: it must be a wire.
        """
        if is_leaf(value):
            settled = self._settled(value)
            if settled is not None:
                own = value.width or 0
                if own != (settled.width or 0):
                    settled = _narrowed(settled, own)
                if settled is not None and (width <= own or self._is_exact(settled)):
                    made = self._context(settled, width)
                    if made is not None:
                        return made
            if (value.width or 0) > width:
                return self.context(low_bits(value, width), width)
            if value.kind == "concat":
                if len(value.parts) == 2 and _is_zero(value.parts[0]) and value.width == width:
                    inner = self.context(value.parts[1], width)  # it is extended anyway
                    if inner is not None:
                        return inner
                parts = tuple(self.alone(part) for part in value.parts)
                return Expr("concat", parts=parts, width=value.width)
            if value.kind == "part" and value.text in self.values:
                found = self.values[value.text]
                if found.kind in ("name", "part"):
                    return Expr("part", found.text, width=value.width, low=found.low + value.low)
            return value
        return self._context(value, width)

    def _context(self, value: Expr, width: int) -> Expr | None:
        if is_leaf(value):
            return self.context(value, width)
        own = value.width or 0
        if value.kind == "?":
            ways = [self.context(part, width) for part in value.parts[1:]]
            if own < width and not self._is_exact(value):
                return None
            if None in ways:
                return None
            wide = max(way.width or 0 for way in ways if way)
            return Expr("?", "?", (self.alone(value.parts[0]), *ways), wide)  # type: ignore
        if value.kind != "op":
            return None
        if value.text in COMPARISONS and len(value.parts) == 2:
            return self._comparison(value)
        if len(value.parts) == 1 and (value.text in "&|!" or (value.text == "^")):
            return Expr("op", value.text, (self.alone(value.parts[0]),), 1)
        if value.text in ("&&", "||"):
            return Expr("op", value.text, tuple(map(self.alone, value.parts)), 1)
        if own < width and not self._is_exact(value):
            return None
        if any(map(is_signed, value.parts)):
            parts = [
                self._extended(part, width) if is_signed(part) else part for part in value.parts
            ]
            if value.text in (">>", ">>>") or None in parts:
                return None
            value = dataclasses.replace(value, parts=tuple(parts))  # type: ignore[arg-type]
        if value.text in SHIFTS:
            first, amount = value.parts
            if value.text != "<<" and (width < (first.width or 0) or width < own):
                return None
            made = self.context(first, width)
            if made is None:
                return None
            return Expr("op", value.text, (made, self.alone(amount)), made.width)
        if value.text in "/%" and any((part.width or 0) > width for part in value.parts):
            return None
        made_parts = [self.context(part, width) for part in value.parts]
        if None in made_parts:
            return None
        wide = max(part.width or 0 for part in made_parts if part)
        return Expr("op", value.text, tuple(made_parts), wide)  # type: ignore[arg-type]

    def _extended(self, part: Expr, width: int) -> Expr | None:
        """A signed operand as an unsigned one of ``width`` bits, if that is as short."""
        value = unsigned_of(part)
        if (value.width or 0) >= width:
            return low_bits(value, width) if is_leaf(value) else value
        if part.kind == "number":
            bits = bits_of(part.text)
            return number(bits[0] * (width - len(bits)) + bits)
        return None

    def _comparison(self, value: Expr) -> Expr:
        if any(map(is_signed, value.parts)):
            parts = tuple(self._signed(part) for part in value.parts)
            return Expr("op", value.text, parts, 1)
        width = max(part.width or 0 for part in value.parts)
        made = [self.context(part, width) or part for part in value.parts]
        if max(part.width or 0 for part in made) < width:
            made[0] = _padded(made[0], width)
        return Expr("op", value.text, tuple(made), 1)

    def _is_exact(self, value: Expr) -> bool:
        """No bit of the value is lost: more bits around it are zeros."""
        own = value.width or 0
        if is_leaf(value):
            return True
        if any(map(is_signed, value.parts)):
            return value.text in COMPARISONS
        widths = [part.width or 0 for part in value.parts]
        if value.kind == "?":
            return all(self._is_exact(part) for part in value.parts[1:])
        if value.text in COMPARISONS or value.text in ("&&", "||", "!"):
            return True
        if len(value.parts) == 1:
            return value.text in "&|^"
        match value.text:
            case "+":
                return own > max(widths)
            case "*":
                return own >= sum(widths)
            case "&" | "|" | "^":
                return own >= max(widths)
            case ">>" | "/" | "%":
                return own >= widths[0]
        return False


def _padded(value: Expr, width: int) -> Expr:
    """``value``, whose own width is less, with ``width`` bits of its own."""
    if value.kind == "number":
        bits = bits_of(value.text)
        return number(bits.zfill(width))
    if value.kind == "?":
        condition, yes, no = value.parts
        return Expr("?", "?", (condition, _padded(yes, width), no), width)
    is_arithmetic = value.kind == "op" and len(value.parts) == 2 and value.text in (
        *_MODULAR, *SHIFTS, "/", "%",
    )  # fmt: skip
    if is_arithmetic or (value.kind == "op" and value.text in ("~", "-")):
        return dataclasses.replace(
            value, parts=(_padded(value.parts[0], width), *value.parts[1:]), width=width
        )
    zeros = number("0" * (width - (value.width or 0)))
    return Expr("concat", parts=(zeros, value), width=width)


def narrow(module: Module) -> None:
    """Take from unnamed wires the high bits that nothing reads."""
    _Narrower(module).run()


def inline(module: Module) -> None:
    """Put the value of each unnamed wire where it is read, if that is one place or it is short."""
    _Inliner(module).run()


_NARROW = 64  # bits of a signal up to which a shift is one step of a simulator


def use_selects(module: Module) -> None:
    """A shift of a wide signal, of which few bits are read, becomes a select of these bits.

    Only where no place is beyond the signal: a shift gives zeros there, a select unknown bits.
    """

    def change(value: Expr) -> Expr:
        if value.kind != "op" or value.text != ">>" or value.width is None:
            return value
        source, place = value.parts
        whole = source.width or 0
        if source.kind not in ("name", "part") or whole <= _NARROW:
            return value
        if _largest(place) + value.width > whole:
            return value
        return Expr("select", source.text, (place,), value.width, source.low)

    module.assigns = [(target, value.replace(change)) for target, value in module.assigns]
    module.clocked = [
        (clock, [each.replaced(change) for each in body]) for clock, body in module.clocked
    ]


def _largest(value: Expr) -> int:
    """A bound of an unsigned value."""
    width = value.width or 0
    if value.kind == "number":
        return int(bits_of(value.text), 2)
    if value.kind == "concat":
        total = 0
        for part in value.parts:
            total = total << (part.width or 0) | _largest(part)
        return total
    if value.kind == "op" and value.text == "*":
        product = _largest(value.parts[0]) * _largest(value.parts[1])
        return min(product, (1 << width) - 1)
    return (1 << width) - 1
