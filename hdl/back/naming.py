"""Names of a module's wires: fields, pins, states, and what an operator's result is for."""

import dataclasses
import re
from collections.abc import Mapping

from hdl.back.module import (
    Expr,
    Module,
    Statement,
    bits_of,
    children_first,
    fresh,
    number,
    renamed,
    values_of,
)  # fmt: skip

_WORDS = {
    "+": "sum", "-": "difference", "*": "product", "<<": "shifted", ">>": "shifted",
    ">>>": "shifted", "<<<": "shifted", "&": "both", "|": "any", "^": "odd", "~": "inverse",
    "?": "choice",
}  # fmt: skip


def use_names(module: Module, aliases: Mapping[tuple, str]) -> None:
    def named(each: Expr) -> Expr:
        if each.kind == "part" and (found := aliases.get((each.text, each.low, each.width))):
            return Expr("name", found, width=each.width)
        return each

    names = set(aliases.values())
    own = [pair for pair in module.assigns if pair[0].text in names]
    module.assigns = [pair for pair in module.assigns if pair[0].text not in names]
    module._replace(named)
    module.assigns += own


def name_by_instance(module: Module) -> None:
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
                changed[name] = fresh(stem, module.declared)
                module.declared[changed[name]] = module.declared[name]
                break
    module.declared = {n: d for n, d in module.declared.items() if n not in changed}
    renamed(module, changed)


def rename(module: Module) -> None:
    """Name each wire that is left without a name after what reads it, and what makes it."""
    values = values_of(module)
    reader: dict[str, str] = {}

    def note(target: str, value: Expr) -> None:
        for name in value.names():
            if name in values:
                reader.setdefault(name, target)

    for target, value in module.assigns:
        if target.text not in module.unnamed:
            note(target.text, value)
    for _, body in module.clocked:
        for each in body:
            first = next(each.targets(), None)
            for value in each.expressions():
                note(first.text.partition("[")[0] if first is not None else "", value)
    for instance in module.instances:
        for pin, value in instance.connections.items():
            note(f"{instance.name}__{pin}", value)
    for name in reversed(children_first(values)):
        note(reader.get(name, ""), values[name])
    names: dict[str, str] = {}
    for name, value in values.items():
        is_operator = value.kind in ("op", "?")
        word = _WORDS.get(value.text, "is") if is_operator else "part"
        if is_operator and len(value.parts) == 1 and value.width == 1:
            word = "is"
        stem = f"{reader[name]}_{word}" if reader.get(name) else f"{word}{name}"
        names[name] = fresh(stem, module.declared)
        module.declared[names[name]] = module.declared.pop(name)
    renamed(module, names)
    module.unnamed = set(names.values())


def name_states(module: Module, states: Mapping[str, Mapping[str, str]]) -> None:
    """Write the name of a state where a state machine's register is compared or changed."""
    known: dict[str, dict[str, Expr]] = {}
    patterns: set[str] = set()
    instances = {each.name for each in module.instances}
    for signal, values in states.items():
        if signal not in module.declared or not module.declared[signal].kind.endswith("reg"):
            continue
        stem = signal.removesuffix("_state")
        names = known.setdefault(signal, {})
        for name, bits in values.items():
            plain = re.sub(r"\W+", "_", f"{stem}_{name}").upper()
            plain = fresh(plain, {*module.declared, *module.constants, *instances})
            literal = number(bits)
            module.constants[plain] = literal
            names[literal.text] = dataclasses.replace(literal, text=plain)

    def way(value: Expr, names: Mapping[str, Expr]) -> Expr:
        if value.kind == "?":
            condition, yes, no = value.parts
            return dataclasses.replace(value, parts=(condition, way(yes, names), way(no, names)))
        if value.kind == "number":
            return names.get(str(number(bits_of(value.text))), value)
        return value

    def compared(value: Expr) -> Expr:
        if value.kind == "op" and value.text in ("==", "!="):
            first, second = value.parts
            if first.kind == "name" and first.text in known:
                return dataclasses.replace(value, parts=(first, way(second, known[first.text])))
        return value

    def statement(each: Statement) -> None:
        names = known.get(each.value.text, {}) if each.kind == "case" else {}
        arms = []
        for selects, body in each.arms:
            if names and selects is not None:
                selects = [str(names.get(pattern, pattern)) for pattern in selects]
                patterns.update(selects)
            for inner in body:
                statement(inner)
            arms.append((selects, body))
        each.arms = arms
        if each.kind == "=" and each.target.text in known:
            each.value = way(each.value, known[each.target.text])

    if known:
        module._replace(compared)
        for _, body in module.clocked:
            for each in body:
                statement(each)
        used = {name for value in module.read() for name in value.constants()} | patterns
        module.constants = {name: each for name, each in module.constants.items() if name in used}
