"""``tb.faults.toggles [BLOCK...]``: bits that the tests of a block never change both ways.

The tests of each block, those that ``tb.faults.mutate`` collects, run on models that count the
edges of every bit. All registers start at 0 there. A bit is reported if it has no rising or no
falling edge in any test of one design. No test sees a fault that holds a bit at its only value. A
bit with one edge is reported too, since its way back is not tested.

Reported are inputs and registers of the block's own module, of its plain submodules, and of the
bank that holds it in a bench. Memories are left out. Some bits cannot change: a constant part of a
layout, or a counter that is wider than its limit.

``build/toggles/KEY/SEED`` holds the result of each block as JSON. KEY is a hash of every source
file. So a run that was interrupted resumes. A block is not kept if a source has changed since the
start. Exit status: 0 if every block was examined, 1 if one was not, 2 for bad input, 130 if
interrupted.
"""

import collections
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator

import tb.simulate.run
from golden import command
from golden.files import kept_json, replacing
from hdl.arguments import whole
from hdl.back.deliver import package
from hdl.back.verilog import convert
from hdl.registry import all_blocks, find
from synth.modules import module_texts
from tb.faults.mutate import Recording, collect, own_modules, with_plain
from tb.simulate.compile import BUILD_DIR
from tb.sweep import SEED_MAX, sources_key

TOGGLES_DIR = BUILD_DIR / "toggles"
_COUNT = re.compile(r"C '(.*)' (\d+)")
_POINT = re.compile(r"(\w+)(?:\[(\d+)\])?:(0->1|1->0)")
_ESCAPED = "__05F"  # an underscore after another one, as Verilator writes it
_DECLARED = re.compile(
    r"^  (?:\(\*.*\*\) )?(?:input(?: +wire)?|(?:output +)?reg) +(?:\[\d+:\d+\] +)?(\w+)( +\[)?",
    re.M,
)

Edges = dict[tuple[str, int, str], int]  # by signal, bit and direction


def edges(coverage: str, module: str) -> Edges:
    """Those of the bits of ``module``, over its instances, in a file of Verilator's coverage."""
    found: Edges = collections.defaultdict(int)
    for text, number in _COUNT.findall(coverage):
        keys = dict(part.split("\x02", 1) for part in text.split("\x01") if "\x02" in part)
        point = _POINT.fullmatch(keys.get("o", "").replace(_ESCAPED, "_"))
        if point and keys.get("page") == f"v_toggle/{module}":
            found[point[1], int(point[2] or 0), point[3]] += int(number)
    return found


def _places(bits: Iterable[int]) -> str:
    """``7:5,2`` of 2, 5, 6 and 7."""
    spans: list[list[int]] = []
    for bit in sorted(bits, reverse=True):
        if spans and spans[-1][1] == bit + 1:
            spans[-1][1] = bit
        else:
            spans.append([bit, bit])
    return ",".join(str(a) if a == b else f"{a}:{b}" for a, b in spans)


def never_change(verilog: str, counted: Edges) -> dict[str, str]:
    """Input or register -> its bits without a rising or without a falling edge.

    RuntimeError: one that was not counted.
    """
    stuck: dict[str, set[int]] = {}
    for (signal, bit, _), number in counted.items():
        bits = stuck.setdefault(signal, set())
        if not number:
            bits.add(bit)
    declared = [name for name, memory in _DECLARED.findall(verilog) if not memory]
    lost = [name for name in declared if name not in stuck]
    if lost:
        raise RuntimeError(f"{lost[0]} was not counted")
    return {name: _places(stuck[name]) for name in declared if stuck[name]}


def _counted_modules(recording: Recording, component: type) -> list[str]:
    design = package(convert(recording.block, tb.simulate.run.TOP, recording.wrap))
    return with_plain(design, own_modules(design, component), module_texts(design.verilog))


def by_design(recordings: list[Recording]) -> Iterator[list[Recording]]:
    """The recordings of each distinct design."""
    left = list(recordings)
    while left:
        design = left[0].design
        yield [each for each in left if each.design == design]
        left = [each for each in left if each.design != design]


def only_counting(verilog: str, modules: list[str]) -> str:
    """``verilog`` that counts the bits of ``modules`` alone. Others cost minutes of g++."""
    off, on = "/*verilator coverage_off*/\n", "/*verilator coverage_on*/\n"
    return "".join(
        text if name in modules else f"{off}{text}{on}"
        for name, text in module_texts(verilog).items()
    )


def examine(name: str, seed: int) -> dict[str, dict[str, str]]:
    """First test of a design -> ``never_change`` over all tests of the design.

    A signal of another module than the top is MODULE.SIGNAL.
    """
    found: dict[str, dict[str, str]] = {}
    for recordings in by_design(collect(name, seed)):
        first = recordings[0]
        modules = _counted_modules(first, find(name).component)
        model = tb.simulate.run.build_model(
            first.block,
            wrap=first.wrap,
            transform=lambda design, modules=modules: only_counting(design.verilog, modules),
            covered=True,
        )
        counted: dict[str, Edges] = {module: collections.defaultdict(int) for module in modules}
        for recording in recordings:
            work = tb.simulate.run.run_model(model, recording.module, **recording.arguments)
            coverage = (work / tb.simulate.run.COVERAGE).read_text()
            shutil.rmtree(work)
            for module in modules:
                for point, number in edges(coverage, module).items():
                    counted[module][point] += number
        texts = module_texts(model.design.verilog)
        bits = found.setdefault(first.test.split("::")[-1], {})
        for module in modules:
            prefix = "" if module == model.design.name else f"{module}."
            for signal, places in never_change(texts[module], counted[module]).items():
                bits[prefix + signal] = places
    return found


def _print(name: str, found: dict[str, dict[str, str]]) -> None:
    for test, bits in found.items():
        listed = ", ".join(f"{signal}[{places}]" for signal, places in bits.items())
        print(f"{name} {test}: {listed or 'every bit changes'}", flush=True)


def _is_result(found) -> bool:
    return isinstance(found, dict) and all(isinstance(each, dict) for each in found.values())


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.faults.toggles", description=__doc__)
    parser.add_argument("blocks", nargs="*", help="default: all")
    parser.add_argument("--seed", type=whole(0, SEED_MAX), default=1)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.blocks) - set(all_blocks()))
    if unknown:
        print(f"tb.faults.toggles: no block is called {unknown[0]!r}", file=sys.stderr)
        return 2
    key = sources_key([])
    folder = TOGGLES_DIR / key / str(options.seed)
    is_broken = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.blocks or all_blocks():
            file = folder / f"{name}.json"
            found = kept_json(file)
            if not _is_result(found):
                try:
                    found = examine(name, options.seed)
                except (AssertionError, RuntimeError) as error:
                    lines = str(error).splitlines() or [type(error).__name__]
                    print(f"{name}: not examined: {lines[0]}", file=sys.stderr)
                    is_broken = True
                    continue
                if sources_key([]) == key:
                    with replacing(file) as part:
                        part.write_text(json.dumps(found, indent=1) + "\n")
                else:
                    print(f"{name}: not kept: a source has changed since the start")
            _print(name, found)
    except KeyboardInterrupt:
        print("tb.faults.toggles: interrupted; the same command resumes", file=sys.stderr)
        return command.INTERRUPTED
    except OSError as error:
        print(f"tb.faults.toggles: {error}", file=sys.stderr)
        return 2
    print(f"kept in {folder.relative_to(tb.simulate.run.ROOT)}")
    return int(is_broken)


if __name__ == "__main__":
    command.run("tb.faults.toggles", main)
