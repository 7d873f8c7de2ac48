"""The findings of ``verilator --lint-only -Wall`` in files of ``hdl.back.deliver``, with reasons.

| rule | where | why |
|---|---|---|
| DECLFILENAME | the file | it has all modules that its top needs |
| UNUSEDSIGNAL | a signal | bits that nothing reads: a carry, a field that a block passes by |
| WIDTHEXPAND | a module | an operand narrower than its operator is extended by zeros or its sign |
| WIDTHTRUNC | a module | a difference or a shift is cut to the bits of its target |

The waivers come from the module alone, not from a run of Verilator. ``tests/test_deliver.py`` and
``python -m tb.chip`` run it: nothing else may be found.
"""

import re
from collections.abc import Iterator, Mapping, Set

from hdl.back.licence import LICENCE
from hdl.back.module import Expr, Module, Statement

# rule -> lines (first, last) of the file, or None for all of it
Waivers = dict[str, list[tuple[int, int] | None]]
_DECLARES = re.compile(
    r"  wire (?:\[\d+:0\] )?(\w+) =|"
    r"  (?:input |output|wire|reg) .*?(\w+)(?: \[0:\d+\])?[,;]?(?:  +//.*)?$"
)


def _parts(value: Expr) -> Iterator[Expr]:
    yield value
    for part in value.parts:
        yield from _parts(part)


def _assignments(module: Module) -> Iterator[tuple[int | None, Expr]]:
    """(width of the target or None, value) of everything that the module computes."""

    def within(body: list[Statement]) -> Iterator[tuple[int | None, Expr]]:
        for each in body:
            if each.kind != "if":
                yield each.target.width, each.value
            for selects, inner in each.arms:
                if each.kind == "if" and selects is not None:
                    yield None, selects
                yield from within(inner)

    for target, value in module.assigns:
        yield target.width, value
    for _, body in module.clocked:
        yield from within(body)
    for instance in module.instances:
        for value in instance.connections.values():
            yield None, value


def _mixes_widths(module: Module) -> bool:
    """An operand, or a value, has another width than what is around it."""
    for width, value in _assignments(module):
        if width is not None and value.width != width:
            return True
        for each in _parts(value):
            if each.kind == "raw":
                return True
            compared = each.parts[1:] if each.kind == "?" else each.parts
            if each.kind in ("op", "?") and len({part.width for part in compared}) > 1:
                return True
    return False


def _unread(module: Module, outputs: Mapping[str, Set[str]]) -> set[str]:
    """Signals of which nothing reads some bits."""
    bits = {name: (1 << known.width) - 1 for name, known in module.declared.items()}
    values = [value for _, value in _assignments(module)]
    driven = {
        id(instance.connections[pin])
        for instance in module.instances
        for pin in outputs[instance.module] & instance.connections.keys()
    }
    for value in [value for value in values if id(value) not in driven]:
        for each in _parts(value):
            if each.kind == "part":
                bits[each.text] &= ~(((1 << (each.width or 0)) - 1) << each.low)
            else:
                for name in each.names() if each.kind in ("name", "raw") else ():
                    bits[name] = 0
    for clock, body in module.clocked:
        bits[clock] = 0
        for statement in body:
            for target in statement.targets():
                if target.kind == "raw":
                    for name in target.names():
                        bits[name] = 0
    return {
        name
        for name, left in bits.items()
        if left and not module.declared[name].kind.startswith("output")
        and not module.declared[name].depth and not name.startswith("unused_")
    }  # fmt: skip


def found(module: Module, text: str, first: int, outputs: Mapping[str, Set[str]]) -> Waivers:
    """Waivers of ``module``, whose ``text`` begins in line ``first`` of its file."""
    lines = text.splitlines()
    result: Waivers = {}
    unread = _unread(module, outputs)
    for n, line in enumerate(lines, start=first):
        declared = _DECLARES.match(line)
        if declared and (declared[1] or declared[2]) in unread:
            result.setdefault("UNUSEDSIGNAL", []).append((n, n))
    if _mixes_widths(module):
        for rule in ("WIDTHEXPAND", "WIDTHTRUNC"):
            result[rule] = [(first, first + len(lines) - 1)]
    return result


def wrapper_waivers(outer: str, verilog: str) -> Waivers:
    """Waivers of the wrapper ``outer``, which is a part of ``verilog``: padding, unused clocks."""
    first = verilog.count("\n", 0, verilog.index(outer)) + 1
    head, _, body = outer.partition(");\n")
    result: Waivers = {}
    for n, line in enumerate(head.splitlines(), start=first):
        port = re.search(r"\binput (?:\[(\d+):0\] )?(\w+),?$", line)
        if port is None:
            continue
        width, used = int(port[1] or 0) + 1, 0
        for part in re.finditer(rf"\b{port[2]}\b(?:\[(\d+):(\d+)\])?", body):
            used |= (2 << int(part[1])) - (1 << int(part[2])) if part[1] else (1 << width) - 1
        if used != (1 << width) - 1:
            result.setdefault("UNUSEDSIGNAL", []).append((n, n))
    return result


def control_file(file: str, waivers: Waivers) -> str:
    """Verilator's configuration for ``file``, wherever it lies."""
    lines = [f"// {LICENCE}", "`verilator_config"]
    for rule, places in sorted(waivers.items()):
        for place in places:
            for pattern in (file, f"*/{file}"):
                line = f'lint_off -rule {rule} -file "{pattern}"'
                if place is not None:
                    line += f" -lines {place[0]}-{place[1]}"
                lines.append(line)
    return "\n".join([*lines, ""])
