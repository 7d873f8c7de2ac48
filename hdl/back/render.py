"""The text of a module of ``hdl.back.write``: Verilog-2005, one declaration per line."""

import textwrap
from collections.abc import Iterator, Mapping

from hdl.back.module import Declared, Expr, Module, Statement, children_first

_LINE = 100


def comment(text: str, indent: str = "") -> list[str]:
    """``text`` as lines that each begin with ``//``."""
    return textwrap.wrap(
        text, _LINE, initial_indent=f"{indent}// ", subsequent_indent=f"{indent}//   ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _wrapped(head: str, value: Expr, indent: str) -> list[str]:
    """``head value;`` in lines: a choice has one line for each way."""
    whole = f"{indent}{head} {value};"
    if len(whole) <= _LINE:
        return [whole]
    if value.kind == "?":
        lines = [f"{indent}{head}"]
        while value.kind == "?":
            condition, yes, value = value.parts
            lines.append(f"{indent}    {_within(condition)} ? {_within(yes)} :")
        return [*lines, f"{indent}    {value};"]
    return [whole]


def _within(value: Expr) -> str:
    return f"({value})" if value.kind == "?" else str(value)


def _statements(body: list[Statement], indent: str) -> Iterator[str]:
    for each in body:
        if each.kind == "=":
            yield from _wrapped(f"{each.target} <=", each.value, indent)
        elif each.kind == "if":
            yield from _if(each.arms, indent)
        else:
            yield from _case(each, indent)


def _block(head: str, body: list[Statement], indent: str) -> Iterator[str]:
    inner = list(_statements(body, f"{indent}  "))
    if len(inner) == 1 and body[0].kind == "=":  # an else after an inner if would be its own
        one = f"{indent}{head} {inner[0].strip()}"
        if len(one) <= _LINE:
            yield one
            return
    yield f"{indent}{head} begin"
    yield from inner
    yield f"{indent}end"


def _and(first: Expr, second: Expr) -> Expr:
    return Expr("op", "&&", (first, second), 1)


def _if(arms: list[tuple], indent: str) -> Iterator[str]:
    arms = list(arms)
    while arms and not arms[-1][1]:  # a last arm without effect
        arms.pop()
    if len(arms) == 2 and not arms[0][1]:
        first, (second, body) = arms[0][0], arms[1]
        otherwise = Expr("op", "!", (first,), 1)
        arms = [(otherwise if second is None else _and(otherwise, second), body)]
    while len(arms) == 1 and len(arms[0][1]) == 1 and arms[0][1][0].kind == "if":
        inner = [arm for arm in arms[0][1][0].arms if arm[1]]
        if len(inner) != 1 or len(arms[0][1][0].arms) != 1 or arms[0][0] is None:
            break
        arms = [(_and(arms[0][0], inner[0][0]), inner[0][1])]
    before = ""
    for condition, body in arms:
        if condition is None and len(body) == 1 and body[0].kind == "if":
            lines = list(_if(body[0].arms, indent))
            yield f"{indent}else {lines[0].strip()}"
            yield from lines[1:]
            return
        head = f"{before}if ({condition})" if condition is not None else "else"
        yield from _block(head, body, indent)
        before = "else "


def _case(each: Statement, indent: str) -> Iterator[str]:
    arms, selector = list(each.arms), each.value
    exact = not any("?" in pattern for patterns, _ in arms for pattern in patterns or ())
    has_default = any(patterns is None and body for patterns, body in arms)
    if exact and not has_default:
        arms = [(patterns, body) for patterns, body in arms if body]
        if len(arms) == 1 and len(arms[0][0]) == 1:
            (pattern,), body = arms[0]
            condition = f"{selector} == {pattern}"
            if selector.width == 1:
                condition = str(selector) if pattern.endswith("1") else f"!{selector._text(12)}"
            yield from _block(f"if ({condition})", body, indent)
            return
        if not arms:
            return
    yield f"{indent}{'case' if exact else 'casez'} ({selector})"
    for patterns, body in arms:
        if patterns is None and not body:
            continue
        head = f"{', '.join(patterns)}:" if patterns is not None else "default:"
        if body:
            yield from _block(head, body, f"{indent}  ")
        else:
            yield f"{indent}  {head} ;"
    if not has_default:
        yield f"{indent}  default: ;"
    yield f"{indent}endcase"


def _clocked(clock: str, body: list[Statement]) -> Iterator[str]:
    """One ``always`` block; a reset that overrides all comes first."""
    head, last = f"always @(posedge {clock})", body[-1]
    if (
        len(body) > 1
        and last.kind == "if"
        and len(last.arms) == 1
        and all(each.kind == "=" and each.target.kind == "name" for each in last.arms[0][1])
        and {str(each.target) for each in last.arms[0][1]}
        == {target.text for each in body for target in each.targets()}
    ):
        body = [Statement("if", arms=[*last.arms, (None, body[:-1])])]
    lines = list(_statements(body, "    "))
    if len(body) == 1:
        if len(lines) == 1 and len(head) + len(lines[0]) < _LINE:
            yield f"  {head} {lines[0].strip()}"
        else:
            yield f"  {head}"
            yield from lines
        return
    yield f"  {head} begin"
    yield from lines
    yield "  end"


def _port(name: str, known: Declared, meaning: str, comma: str) -> str:
    kind, _, reg = known.kind.partition(" ")
    text = f"  {kind:6} {reg or 'wire':4} {_range(known.width):8}{name}{comma}"
    return f"{text:48}  // {meaning}" if meaning else text


def _folded(line: str) -> list[str]:
    """``line`` in lines of _LINE columns where it has spaces; comments stay."""
    if len(line) <= _LINE or "//" in line:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(), _LINE, initial_indent=indent, subsequent_indent=f"{indent}    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _values(module: Module) -> dict[str, Expr]:
    """Wires whose declaration gives their value: those without a name of the source, in order."""
    values = {
        target.text: value
        for target, value in module.assigns
        if target.kind == "name" and target.text in module.unnamed
    }
    return {name: values[name] for name in children_first(values)}


def render(module: Module, names: Mapping[str, str], meanings: Mapping[str, str]) -> list[str]:
    """Lines of ``module``.

    names: of modules, in the place of those that the instances have; meanings: of the ports.
    """
    lines = [f"module {names.get(module.name, module.name)} ("]
    for place, port in enumerate(module.ports, start=1):
        comma = "," if place < len(module.ports) else ""
        lines.append(_port(port, module.declared[port], meanings.get(port, ""), comma))
    lines.append(");")
    inner, values = [], _values(module)
    for name, literal in module.constants.items():
        inner.append(f"  localparam {_range(literal.width or 1)}{name} = {literal};")
    for kind in ("reg", "wire"):
        for name, known in module.declared.items():
            if known.kind == kind and name not in values:
                depth = f" [0:{known.depth - 1}]" if known.depth else ""
                inner.append(f"  {kind} {_range(known.width)}{name}{depth};")
    lines += inner
    if values:
        lines.append("")
    for name, value in values.items():
        lines += _wrapped(f"wire {_range(module.declared[name].width)}{name} =", value, "  ")
    if module.instances:
        lines.append("")
    for instance in module.instances:
        lines.append(f"  {names.get(instance.module, instance.module)} {instance.name} (")
        pins = [f"    .{pin}({value})" for pin, value in instance.connections.items()]
        lines.append(",\n".join(pins))
        lines.append("  );")
    assigns = [(target, value) for target, value in module.assigns if target.text not in values]
    if assigns:
        lines.append("")
    for target, value in assigns:
        lines += _wrapped(f"assign {target} =", value, "  ")
    for clock, body in module.clocked:
        lines.append("")
        lines += _clocked(clock, body)
    lines.append("endmodule")
    return [each for line in lines for one in line.split("\n") for each in _folded(one)]
