"""Faults in the source of a generator, by its syntax tree: a pytest plugin builds one of them in.

    python -m pytest -p tb.faults.source tb/stream/test_skid.py     # with the environment below

``SENBAZURU_FAULT`` is ``FILE:NUMBER``: fault ``NUMBER`` of ``sites`` is in every import of FILE.
Emissions are then neither read from build/emit nor kept there. A generator that no longer
elaborates ends the run with status ``INVALID``.

| fault | is put in the place of |
|---|---|
| the other comparison, sum, product of bits | ``==``, ``<``, ``+``, ``&`` and the like |
| its operand | ``~x`` |
| the choices exchanged | ``Mux(c, a, b)`` |
| one more | an integer that is compared, added or an index |
| half the range | ``Signal(range(n))`` |
| nothing | ``m.d.comb += ...`` and ``m.d.sync += ...`` |
"""

import ast
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

VARIABLE = "SENBAZURU_FAULT"
INVALID = 77
_OTHER: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
_PLAIN = ("__init__", "timing", "operations")  # methods that are no hardware


def _is_hardware(node: ast.AST) -> bool:
    """Whether faults in ``node``, a definition, may be faults of the hardware."""
    if isinstance(node, ast.ClassDef):
        return not node.name.endswith(("Config", "Shape"))
    return isinstance(node, ast.FunctionDef) and node.name not in _PLAIN


class _Planter(ast.NodeTransformer):
    """Counts the places for faults in the order of the text, and builds in number ``wanted``."""

    def __init__(self, wanted: int = -1):
        self.wanted, self.sites = wanted, list[tuple[int, str]]()
        self._is_inside, self._is_plain = False, False

    def _take(self, node: ast.AST, kind: str) -> bool:
        self.sites.append((node.lineno, kind))
        return len(self.sites) - 1 == self.wanted

    def _definition(self, node):
        before = self._is_inside, self._is_plain
        self._is_plain |= not _is_hardware(node)
        self._is_inside = isinstance(node, ast.FunctionDef) and not self._is_plain
        node.body = [self.visit(each) for each in node.body]
        self._is_inside, self._is_plain = before
        return node

    visit_ClassDef = visit_FunctionDef = _definition

    def visit_AugAssign(self, node):
        is_hardware = self._is_inside and ast.unparse(node.target) in ("m.d.comb", "m.d.sync")
        if is_hardware and self._take(node, "dropped"):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Compare(self, node):
        kind = type(node.ops[0])
        if self._is_inside and kind in _OTHER and self._take(node, kind.__name__):
            node.ops[0] = _OTHER[kind]()
        node.comparators[0] = self._one_more(node.comparators[0])
        return self.generic_visit(node)

    def visit_BinOp(self, node):
        kind = type(node.op)
        if self._is_inside and kind in _OTHER and self._take(node, kind.__name__):
            node.op = _OTHER[kind]()
        if kind in (ast.Add, ast.Sub):
            node.right = self._one_more(node.right)
        return self.generic_visit(node)

    def visit_Subscript(self, node):
        node.slice = self._one_more(node.slice)
        return self.generic_visit(node)

    def _one_more(self, operand: ast.expr) -> ast.expr:
        is_number = isinstance(operand, ast.Constant) and type(operand.value) is int
        if self._is_inside and is_number and self._take(operand, "one more"):
            return ast.copy_location(ast.Constant(operand.value + 1), operand)
        return operand

    def visit_UnaryOp(self, node):
        inverts = self._is_inside and isinstance(node.op, ast.Invert)
        if inverts and self._take(node, "not inverted"):
            return self.visit(node.operand)
        return self.generic_visit(node)

    def visit_Call(self, node):
        name = ast.unparse(node.func)
        if self._is_inside and name == "Mux" and self._take(node, "exchanged"):
            node.args[1:] = node.args[:0:-1]
        if self._is_inside and name == "Signal" and node.args:
            shape = node.args[0]
            is_range = isinstance(shape, ast.Call) and ast.unparse(shape.func) == "range"
            if is_range and len(shape.args) == 1 and self._take(node, "half the range"):
                half = ast.BinOp(shape.args[0], ast.FloorDiv(), ast.Constant(2))
                one = ast.Call(ast.Name("max", ast.Load()), [half, ast.Constant(1)], [])
                shape.args[0] = one
        return self.generic_visit(node)


def sites(text: str) -> list[tuple[int, str]]:
    """(line, kind) of each fault of a source; the place in this list is its number."""
    planter = _Planter()
    planter.visit(ast.parse(text))
    return planter.sites


def planted(text: str, number: int) -> ast.Module:
    """The tree of a source with one of its faults."""
    tree = _Planter(number).visit(ast.parse(text))
    return ast.fix_missing_locations(tree)


class _Loader(importlib.machinery.SourceFileLoader):
    number = -1

    def get_code(self, fullname):
        file = Path(self.path)  # no bytecode: that of the file has no fault
        return compile(planted(file.read_text(), self.number), str(file), "exec")


class _Finder:
    def __init__(self, file: Path, number: int):
        self._file, self._number = file.resolve(), number

    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not spec.origin or Path(spec.origin).resolve() != self._file:
            return None
        loader = _Loader(name, spec.origin)
        loader.number = self._number
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


def pytest_configure(config):
    file, _, number = os.environ[VARIABLE].rpartition(":")
    sys.meta_path.insert(0, _Finder(Path(file), int(number)))


def pytest_collection_finish(session):
    import pytest

    import tb.simulate.run as run

    make = run._emit

    def emit_or_leave(*arguments):
        try:
            return make(*arguments)
        except Exception as error:  # whatever the generator with its fault does
            pytest.exit(f"the fault does not elaborate: {error!r}", returncode=INVALID)

    run.emission_key = lambda *_: None
    run._emit = emit_or_leave
