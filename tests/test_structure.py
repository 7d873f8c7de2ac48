"""The house: every block has its rooms, and imports run one way."""

import ast
import collections
import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.lib import data, stream, wiring

from golden.config import Config, ConfigError
from hdl.back.verilog import without_meaning
from hdl.block import Block, FieldOf, Tier, snake_case
from hdl.kit.kits import all_kits
from hdl.pages.documents import documents, fill_document, pages_directory
from hdl.ports import Bus, In, Out, Payload, member_text
from hdl.registry import (
    ROOMS,
    Registered,
    all_blocks,
    bench,
    ips,
    registered,
    users_of_blocks,
)

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = all_blocks()
DOCUMENTS = documents()

# Of golden, hdl may use only what is pure Python: configurations, formats, commands and their end.
ALLOWED = {
    "golden": {"golden"},
    "hdl": {
        "hdl",
        "golden.command",
        "golden.config",
        "golden.isa",
        "golden.markers",
        "golden.timing",
        "golden.words",
        "golden.*.config",
        "golden.*.format",
        "golden.*.isa",
        "golden.*.timing",
    },
    "synth": {"synth", "hdl", "golden"},
    "sim": {"sim", "golden"},
    "tb": {"tb", "synth", "hdl", "golden"},
    "senbazuru": {"senbazuru", "tb", "sim", "synth", "hdl", "golden"},
}


# ``hdl.kit.kits`` imports the modules of this folder by the names of their rooms, and only for a
# testbench. They say what golden's words are to a kit, so they alone of hdl meet golden models.
KITS = "hdl/kit/rooms"


# Rooms from the bottom up: a room imports only rooms of lower levels. ``llm`` meets the systems
# with models; ``back`` emits and delivers any block, ``pages`` and ``kit`` tell of it.
LEVELS = [
    {"fp16", "memory"},
    {"stream"},
    {"axi"},
    {"index", "paging"},
    {"attention"},
    {"lanes"},
    {"oaken", "million"},
    {"kllm"},
    {"vqllm"},
    {"qet"},
    {"back"},
    {"pages"},
    {"llm", "kit"},
]
# The shared memory has queues, and the queues have RAMs.
EXCEPTIONS = {("hdl", "memory", "stream")}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert all(alias.name != "*" for alias in node.names), f"{path}: star import"
            folder = ROOT / node.module.replace(".", "/")
            submodules = {
                alias.name for alias in node.names if (folder / f"{alias.name}.py").exists()
            }
            names |= {f"{node.module}.{name}" for name in submodules}
            if submodules != {alias.name for alias in node.names}:
                names.add(node.module)
    return names


def import_graph(package: str) -> dict[str, set[str]]:
    """Modules of a package to those of the package that they import, inside functions too."""
    modules = {}
    for path in sources(package):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = imported(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        graph[name] = found & modules.keys() - {name}
    return graph


def first_circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, empty: none."""
    left = {name: set(found) for name, found in graph.items()}
    while free := [name for name, found in left.items() if not found & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    circle = [min(left)]
    while circle[-1] not in circle[:-1]:
        circle.append(min(left[circle[-1]] & left.keys()))
    return circle[circle.index(circle[-1]) :]


PARAMETERS_MAX = 7


def long_signatures(path: Path) -> list[str]:
    """Functions of a file with more than PARAMETERS_MAX parameters; self and cls do not count."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
            count = len([name for name in names if name not in ("self", "cls")])
            if count > PARAMETERS_MAX:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} takes {count}")
    return found


def is_allowed(name: str, patterns: set[str]) -> bool:
    for pattern in patterns:
        parts, wanted = name.split("."), pattern.split(".")
        if len(parts) >= len(wanted) and all(
            w in ("*", p) for p, w in zip(parts, wanted, strict=False)
        ):
            return True
    return False


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package):
    """Benches know no command of a user. Each package asks ``senbazuru`` itself whether it is ours.

    Seen to fail: nine benches that imported commands of senbazuru.runs.
    """
    for path in sources(package):
        allowed = ALLOWED[package]
        if (ROOT / KITS) in path.parents:
            allowed = allowed | {"golden"}
        if package == "senbazuru" and path.name.startswith("test_"):
            allowed = allowed | {"tests"}
        for name in imported(path) - {"senbazuru"}:
            if name.split(".")[0] in PACKAGES:
                assert is_allowed(name, allowed), f"{path.relative_to(ROOT)}: {name}"


@pytest.mark.parametrize("package", ALLOWED)
def test_no_import_circle(package):
    """Shown to fail: golden.llm.eval.calibration imports ``Method``, at its top or in a method.

    Five commands of senbazuru.runs were two modules each that imported each other.
    """
    circle = first_circle(import_graph(package))
    assert not circle, " -> ".join(circle)


def test_first_circle_finds_one():
    assert first_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert not first_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


PACKAGES = ("golden", "hdl", "sim", "synth", "tb", "tests", "senbazuru")


def module_place(module: str) -> Path | None:
    """The file or folder of a module; None: there is none in this project."""
    path = ROOT.joinpath(*module.split("."))
    places = (path.with_suffix(".py"), path / "__init__.py", path)
    return next((place for place in places if place.exists()), None)


@functools.cache
def names_of_module(place: Path) -> set[str]:
    """The names that a module has: those that its outermost statements bind."""
    if place.is_dir():
        return set()
    names, left = set(), list(ast.parse(place.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)  # what is inside has no name out here
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        left += ast.iter_child_nodes(node)
    return names


def missing_imports(tree: ast.AST) -> list[str]:
    """Modules of this project that a file imports and that do not exist, and names in them."""
    wanted = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            wanted += [(node.module, alias.name) for alias in node.names]
    found = []
    for module, name in wanted:
        if module.split(".")[0] not in PACKAGES:
            continue
        place = module_place(module)
        if place is None:
            found.append(module)
        elif name and module_place(f"{module}.{name}") is None:
            if not names_of_module(place) & {name, "__getattr__"}:
                found.append(f"{module}.{name}")
    return found


def test_imported_names_exist():
    """Types of benches go unchecked, so nothing else sees such an import before the bench runs.

    Seen to fail: a bench imported a function that another bench had renamed.
    """
    for package in PACKAGES:
        for path in sources(package):
            missing = missing_imports(ast.parse(path.read_text()))
            assert not missing, f"{path.relative_to(ROOT)}: {missing}"


def needless_list(program: str) -> bool:
    """Whether a module's ``__all__`` has none of the names that it imports."""
    listed, found = None, set()
    for node in ast.parse(program).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = set(ast.literal_eval(node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return listed is not None and not listed & found


def test_modules_list_their_names_only_to_hand_on_imports():
    """Nobody imports a star. A package's face lists its names, and linters want one of re-exports.

    Seen to fail: 852 modules that listed what they define.
    """
    assert needless_list("__all__ = ['a']\na = 1\n")
    assert not needless_list("from b import a\n\n__all__ = ['a']\n")
    for package in PACKAGES:
        for path in sources(package):
            if path.name != "__init__.py":
                assert not needless_list(path.read_text()), path.relative_to(ROOT)


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ("from tb.kllm.test_lane_codebook import word_grids", []),
        ("from tb.kllm.test_lane_codebook import no_word", ["tb.kllm.test_lane_codebook.no_word"]),
        ("from tb.kllm.test_lane_codebook import grids", ["tb.kllm.test_lane_codebook.grids"]),
        ("from tb.kllm.no_bench import word", ["tb.kllm.no_bench"]),
        ("import tb.kllm.no_bench", ["tb.kllm.no_bench"]),
        ("from tb.kllm import test_lane_codebook, support", []),
        ("from golden.paging.mmu import no_name", ["golden.paging.mmu.no_name"]),
        ("from os import nothing", []),
    ],
)
def test_missing_imports_finds_them(program, missing):
    assert missing_imports(ast.parse(program)) == missing


def is_upward(package: str, room: str, name: str) -> bool:
    """Whether ``room`` of ``package`` may not import module ``name``."""
    level = {each: n for n, rooms in enumerate(LEVELS) for each in rooms}
    parts = name.split(".")
    if parts[0] != package or len(parts) < 2 or parts[1] not in level or parts[1] == room:
        return False
    return (package, room, parts[1]) not in EXCEPTIONS and level[parts[1]] >= level[room]


@pytest.mark.parametrize("package", ["golden", "hdl"])
def test_rooms_import_lower_rooms(package):
    """No arrow between rooms runs up or across: the shared rooms know no system."""
    rooms = [path for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()]
    assert rooms
    for room in rooms:
        assert any(room.name in level for level in LEVELS), f"{room.name} has no level"
        for path in sources(f"{package}/{room.name}"):
            for name in imported(path):
                where = f"{path.relative_to(ROOT)}: {name}"
                assert not is_upward(package, room.name, name), where


def test_is_upward_finds_an_arrow():
    assert is_upward("hdl", "paging", "hdl.oaken.layouts")
    assert is_upward("hdl", "oaken", "hdl.kllm.layouts")
    assert not is_upward("hdl", "kllm", "hdl.oaken.layouts")
    assert is_upward("golden", "index", "golden.kllm.matmul")
    assert not is_upward("hdl", "oaken", "hdl.paging.layouts")
    assert not is_upward("golden", "index", "golden.config")


TOOLS = [
    "hdl/pages/documents.py", "hdl/registry.py", "hdl/back/emit.py", "hdl/back/verilog.py",
    "hdl/build.py", "synth/compare.py", "synth/area.py", "synth/modules.py", "synth/report.py",
    "tb/faults/mutate.py", "senbazuru/runs/build_report.py", "tb/simulate/run.py",
    "tb/bench.py", "tb/simulate/compile.py", "tb/contract.py", "tb/simulate/ports.py",
    "tb/simulate/sources.py", "tb/simulate/runner.py", "tb/sweep.py", "tb/faults/plant.py",
    "tb/faults/toggles.py",
    "golden/words.py", "tb/simulate/resident.py", "tb/simulate/resident_regression.py",
    "tb/simulate/forked.py", "hdl/back/yosys.py", "tb/faults/equivalence.py",
    "golden/markers.py", "golden/isa.py", "golden/timing.py", "hdl/back/deliver.py",
    "hdl/back/render.py", "hdl/back/write.py", "hdl/back/waivers.py", "tb/together.py",
    "hdl/back/module.py", "hdl/back/inline.py", "hdl/back/naming.py",
    "hdl/back/separator.py", "hdl/back/keywords.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "hdl" / "kit").glob("*.py")),
    "tb/kits/check.py",
]  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_name_no_system(tool):
    """No name, import or string of a tool's program is a system's; docstrings may say one."""
    tree = ast.parse((ROOT / tool).read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found = node.value
        elif isinstance(node, ast.Name):
            found = node.id
        elif isinstance(node, ast.ImportFrom):
            found = f"{node.module}"
        elif isinstance(node, ast.alias):
            found = node.name
        else:
            continue
        assert not re.search("kllm|oaken|million|vqllm|qet", found, re.I), f"{tool}: {found[:60]!r}"


def test_golden_functions_take_records():
    """One dataclass has what belongs together. Shown to fail: an eighth parameter of ``matmul``."""
    found = [each for path in sources("golden") for each in long_signatures(path)]
    assert not found, "\n".join(found)


def test_hdl_never_loads_torch():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources("hdl")
        if path.stem not in ("__init__", "__main__") and (ROOT / KITS) not in path.parents
    ]
    program = f"import sys, importlib; [importlib.import_module(m) for m in {modules}];"
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("name", BLOCKS)
def test_block_has_its_rooms(name):
    """A part and an IP have a generator with a docstring, a golden function and a bench."""
    block = BLOCKS[name]
    generator = Path(inspect.getfile(block.component)).relative_to(ROOT)
    assert generator.parts[:2] in {("hdl", each) for each in ROOMS}
    module, _, function = block.golden.partition(":")
    assert callable(getattr(importlib.import_module(module), function)), block.golden
    assert (ROOT / bench(name)).exists(), f"no testbench: {bench(name)}"
    documentation = vars(block.component).get("__doc__")
    assert (documentation or "").strip(), f"{name} has no docstring"


# A class whose modules of Verilog are one, so its name is; its room has the entries of both blocks.
TWO_BLOCKS = {"fp16_from_fp32", "fp16_to_fp32"}


def test_the_class_of_a_block_is_its_entry():
    """``room.py`` lists classes. A class says its name only where the rule gives another one.

    Seen to fail: a golden function that a class has from its base; ``name = "stream_fifo"``.
    """
    count = collections.Counter(block.component for block in BLOCKS.values())
    assert {name for name, block in BLOCKS.items() if count[block.component] > 1} == TWO_BLOCKS
    for name in BLOCKS.keys() - TWO_BLOCKS:
        own, rule = vars(BLOCKS[name].component), snake_case(BLOCKS[name].component)
        assert own.get("name", rule) == name
        assert own.get("name") != rule, f"{name}: the class need not say its name"
        assert own.get("golden") == BLOCKS[name].golden, f"{name} says no golden function"
        assert own.get("reference", "") == BLOCKS[name].reference
        assert own.get("tier", Tier.IP) is BLOCKS[name].tier


def test_registered_reads_classes():
    class Sizes(Config):
        inner = Config()

    class Whole(Block):
        golden = "golden.words:one"
        default = Sizes()
        configs = {"a": Sizes(), "b": Sizes()}  # noqa: RUF012

    class WholePart(Whole):
        tier = Tier.PART
        configs = FieldOf("whole", "inner", ("b",))

    class Other(Whole):
        name = "whole"

    blocks = registered(WholePart, Whole)
    assert list(blocks) == ["whole_part", "whole"]
    assert (blocks["whole"].config, list(blocks["whole"].configs)) == (Sizes(), ["a", "b"])
    part = blocks["whole_part"]
    assert (part.tier, part.golden, part.config) == (Tier.PART, "", Config())  # it inherits none
    assert part.configs == {"b": Config()}
    with pytest.raises(ConfigError, match="two blocks are called whole"):
        registered(Whole, Other)
    with pytest.raises(ConfigError, match="Other is in a room and has no default configuration"):
        registered(Other)


# Their golden function returns what it is given: it is the definition, and nothing computes it.
WITHOUT_REFERENCE = {"stream_fifo", "stream_fork", "stream_register", "stream_skid"}


def missing_reference(reference: str) -> str:
    """Says what of a reference ``FILE: TEST`` does not exist; empty: it exists."""
    file, _, test = reference.partition(": ")
    if not file.startswith("tests/") or not (ROOT / file).is_file():
        return f"no file {file}"
    names = [n.name for n in ast.parse((ROOT / file).read_text()).body
             if isinstance(n, ast.FunctionDef)]  # fmt: skip
    return "" if test.startswith("test_") and test in names else f"no test {test} in {file}"


def test_each_ip_has_an_independent_reference():
    """The test of its golden function against what is not golden's; it exists.

    Seen to fail: the RAMs, ``stream_join``, ``stream_widen`` and AXI's registers had no such test.
    """
    named = {name: block.reference for name, block in BLOCKS.items() if block.reference}
    found = {name: missing_reference(reference) for name, reference in named.items()}
    assert not {name: text for name, text in found.items() if text}
    assert ips().keys() - named.keys() == WITHOUT_REFERENCE


def test_missing_reference_finds_each_case():
    here = "tests/test_structure.py"
    assert not missing_reference(f"{here}: test_missing_reference_finds_each_case")
    assert missing_reference(f"{here}: test_nothing") == f"no test test_nothing in {here}"
    assert missing_reference(f"{here}: sources") == f"no test sources in {here}"
    assert missing_reference("tests/no.py: test_a") == "no file tests/no.py"
    assert missing_reference("") == "no file "


def of_wrong_tier(blocks: dict[str, Registered], pages: set[str], kits: set[str]) -> list[str]:
    """An IP has a page, a part has neither page nor kit, and nothing else has either."""
    tiers = {name: block.tier for name, block in blocks.items()}
    found = [f"{n}: an IP without a page" for n in tiers if tiers[n] is Tier.IP and n not in pages]
    found += [f"{n}: a page of no IP" for n in pages if tiers.get(n) is not Tier.IP]
    found += [f"{n}: a kit of no IP" for n in kits if tiers.get(n) is not Tier.IP]
    return sorted(found)


def test_tiers_have_what_they_say():
    """docs/blocks has the pages of the IPs and the index alone; each block with a kit is an IP.

    Seen to fail: the page of a part brought back; an IP that is a part in its room, and the other
    way round.
    """
    pages = {path.stem for path in pages_directory().glob("*.md")} - {"index"}
    found = of_wrong_tier(BLOCKS, pages, set(all_kits()))
    assert not found, "\n".join(found)


def test_of_wrong_tier_finds_each_case():
    one, other = BLOCKS["stream_fifo"], BLOCKS["oaken_zero_remove"]
    assert not of_wrong_tier({"a": one, "b": other}, {"a"}, {"a"})
    assert of_wrong_tier({"a": one, "b": other}, {"b", "c"}, {"b"}) == [
        "a: an IP without a page", "b: a kit of no IP", "b: a page of no IP", "c: a page of no IP",
    ]  # fmt: skip


# An SRAM of a vendor replaces them, so they have no area of cells.
MACROS = {"memory_1r1w", "memory_1rw"}


def test_ips_have_a_baseline():
    """Seen to fail: Oaken's engines and cache, the MMU and KLLM's accelerator had none."""
    files = sorted((ROOT / "synth" / "baselines").glob("*.json"))
    found = {each["block"] for file in files for each in json.loads(file.read_text())["blocks"]}
    assert ips().keys() - found == MACROS


def test_each_part_is_inside_of_another_block():
    """A block that nothing contains is for an integrator, so it is an IP."""
    users = users_of_blocks()
    assert not {name for name in BLOCKS if name not in ips() and not users[name]}


@pytest.mark.parametrize("name", BLOCKS)
def test_ports_and_fields_have_a_meaning(name):
    """Each row of ``hdl.build NAME --ports``, at every named configuration."""
    block = BLOCKS[name]
    for config in (block.config, *block.configs.values()):
        component = block.component(config)
        component._MustUse__silence = True
        missing = without_meaning(component)
        assert not missing, f"give {', '.join(missing)} a text (hdl.ports)"


def second_lists(tree: ast.AST) -> list[str]:
    """Classes with an attribute ``meaning`` or a section Members, and members without a text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if re.search(r"^ *Members\n *---", ast.get_docstring(node) or "", re.M):
                found.append(f"{node.name}: a section Members")
            found += [
                f"{node.name}.meaning"
                for each in node.body
                if isinstance(each, ast.AnnAssign) and each.value is not None
                and ast.unparse(each.target) == "meaning"
            ]  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module == "amaranth.lib.wiring":
            found += [f"wiring.{each.name}" for each in node.names if each.name in ("In", "Out")]
        elif isinstance(node, ast.Assign):
            targets = map(ast.unparse, node.targets)
            found += [target for target in targets if target == "self.meaning"]
    return found


def test_ports_are_listed_once():
    """The signature is the one list of a block's ports."""
    for path in sources("hdl"):
        found = second_lists(ast.parse(path.read_text()))
        assert not found, f"{path.relative_to(ROOT)}: {found}"


def test_second_lists_finds_them():
    text = """
from amaranth.lib.wiring import In, connect
class Thing(Block):
    '''A thing.

    Members
    -------
    i : In
    '''

    meaning: ClassVar[dict[str, str]] = {"i": "words"}

    def __init__(self):
        self.meaning = {}
"""
    found = ["Thing.meaning", "Thing: a section Members", "self.meaning", "wiring.In"]
    assert sorted(second_lists(ast.parse(text))) == found


def test_without_meaning_finds_what_has_none():
    """A member, a field, a nested field, a channel of a bus and an element without a text."""

    class Planted(Block):
        def __init__(self, inner):
            fields = Payload(a=(1, "one"), b=(2, ""), inner=(inner, "nested"))
            word = stream.Signature(Payload(word=(8, "a word")))
            super().__init__(
                Config(),
                {
                    "plain": wiring.In(1),
                    "told": In(1, "a bit"),
                    "i": In(stream.Signature(fields), "words"),
                    "bus": Out(Bus({"x": Out(1, ""), "y": Out(1, "a channel")}), "a bus"),
                    "o": Out(word, ("zeroth", "")).array(2),
                },
            )

    block = Planted(data.ArrayLayout(data.StructLayout({"c": 1}), 2))
    block._MustUse__silence = True
    assert without_meaning(block) == [
        "plain", "i__payload.b", "i__payload.inner[].c", "bus__x", "o_1__payload",
    ]  # fmt: skip
    assert member_text(block, ("bus", "y")) == "a bus: a channel"
    assert member_text(block, ("o", 0, "payload")) == "zeroth"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_is_up_to_date(name):
    text = (pages_directory().parent / name).read_text()
    assert all(f"<!-- generated: {section} -->" in text for section in DOCUMENTS[name])
    assert fill_document(name, text) == text, "run make docs"


@pytest.mark.parametrize("name", BLOCKS)
def test_named_configurations_are_of_the_block(name):
    block = BLOCKS[name]
    for config in (block.config, *block.configs.values()):
        assert type(config) is type(block.config)


def test_no_machine_paths_or_blobs():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if not path.exists():
            continue
        data = path.read_bytes()
        assert b"\0" not in data, f"{name} is binary"
        assert len(data) < 1_000_000, f"{name} is over 1 MB"
        if path.suffix in (".py", ".md", ".toml", ".txt") and path.name != "test_structure.py":
            for prefix in (b"/work/", b"/root/", b"/home/"):
                assert prefix not in data, f"{name} names a path of some machine"


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_commands_of_the_page_exist(page):
    """Each `make NAME` and each `python -m MODULE` exists."""
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    named = set(re.findall(r"`make ([a-z-]+)", text))
    assert named
    assert named <= targets, f"no such target: {sorted(named - targets)}"
    modules = set(re.findall(r"python -m ([a-z0-9_.]+)", text))
    places = [ROOT / module.replace(".", "/") for module in modules]
    assert places or page == "README.md"
    missing = [
        place.name
        for place in places
        if not place.with_suffix(".py").exists() and not (place / "__main__.py").exists()
    ]
    assert not missing, missing


@pytest.mark.parametrize("name", BLOCKS)
def test_timing_is_a_number(name):
    """Each named configuration has numbers; the block's own bench asserts what they say."""
    block = BLOCKS[name]
    for config in (block.config, *block.configs.values()):
        component = block.component(config)
        component._MustUse__silence = True
        described = component.timing.describe()
        assert isinstance(described["latency"], int)
        assert isinstance(described["interval"], int | float)


def timing_names(path: Path) -> set[tuple[str, str]]:
    """(module, name) of each name that a file takes from a ``golden.<room>.timing``."""
    tree, found, modules = ast.parse(path.read_text()), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if re.fullmatch(r"golden\.\w+\.timing", node.module):
                    found.add((node.module, alias.name))
                elif re.fullmatch(r"golden\.\w+", node.module) and alias.name == "timing":
                    modules[alias.asname or alias.name] = f"{node.module}.timing"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in modules:
                found.add((modules[node.value.id], node.attr))
    return found


def test_own_cycles_stand_in_the_block():
    """A function of golden's timing has a user besides one block, its bench and its tests."""
    blocks = {Path(inspect.getfile(block.component)) for block in BLOCKS.values()}
    users: dict[tuple[str, str], set[Path]] = {}
    packages = ("golden", "hdl", "synth", "sim", "senbazuru")
    shared = (ROOT / "tb").glob("*/support/*.py")  # by benches and by commands of users
    for path in [*shared, *(path for package in packages for path in sources(package))]:
        for key in timing_names(path):
            users.setdefault(key, set()).add(path)
    found = []
    for path in sorted((ROOT / "golden").glob("*/timing.py")):
        module = f"golden.{path.parent.name}.timing"
        body = ast.parse(path.read_text()).body
        for part in (each for each in body if isinstance(each, ast.FunctionDef)):
            here = [ast.unparse(each) for each in body if each is not part]
            taken = users.get((module, part.name), set())
            has_other = any(re.search(rf"\b{part.name}\b", each) for each in here)
            if not has_other and len(taken) < 2 and taken <= blocks:
                found.append(f"{module}.{part.name}")
    assert not found, f"these belong into ``timing`` of their block: {', '.join(found)}"


def test_sim_loads_neither_torch_nor_amaranth():
    """The simulator's imports from golden are pure. Seen to fail with golden.kllm.orizuru."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources("sim")
        if path.stem not in ("__init__", "__main__")
    ]
    program = f"import sys, importlib; [importlib.import_module(m) for m in {modules}];"
    program += "sys.exit('torch' in sys.modules or 'amaranth' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_timing_loads_neither_torch_nor_amaranth():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "golden").rglob("timing.py"))
    ]
    assert len(modules) > 6
    program = f"import sys, importlib; [importlib.import_module(m) for m in {modules}];"
    program += "sys.exit('torch' in sys.modules or 'amaranth' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def unknown_tests(page: str, known: set[str]) -> list[str]:
    """Names in the last column of the page's Testplan that are not among ``known``."""
    plan = page.partition("## Testplan")[2].split("\n## ")[0]
    cells = [line.rstrip("| ").split("|")[-1] for line in plan.splitlines() if line.startswith("|")]
    quoted = [each for cell in cells for each in re.findall(r"`([^`]+)`", cell)]
    names = [re.sub(r"\[.*", "", each.split(":")[-1].strip()) for each in quoted]
    return [name for name in names if re.fullmatch(r"[a-z_]\w*", name) and name not in known]


def test_every_test_of_a_testplan_exists():
    """Seen to find 12 names of tests that benches had given up for those of tb.contract."""
    files = [file for room in ("tb", "senbazuru", "tests") for file in (ROOT / room).rglob("*.py")]
    for pattern in ("*/vectors.py", "*/vectors/*.py"):  # the words of benches
        files += (ROOT / "golden").glob(pattern)
    known = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    absent = "no_such" + "_test"  # a name that no file has, this one included
    assert unknown_tests(f"## Testplan\n| x | `tb_a.py: {absent}` |", known) == [absent]
    pages = sorted((ROOT / "docs" / "blocks").glob("*.md"))
    assert len(pages) > 70
    found = {page.stem: unknown_tests(page.read_text(), known) for page in pages}
    assert not {name: names for name, names in found.items() if names}
