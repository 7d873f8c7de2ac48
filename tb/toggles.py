"""``python -m tb.toggles [BLOCK...]``: bits that the tests of a block never change both ways.

The tests of each block, those that ``tb.mutate`` collects, run on models that count the edges of
every bit. A bit is reported if it has no rising or no falling edge in any test of one design. A
fault that holds such a bit is seen by no test. Reported are inputs, and registers of the own
module of the block. Some cannot change: a constant part of a layout, or a counter that is wider
than its limit.

``build/toggles/KEY/SEED`` holds the result of each block as JSON. KEY is a hash of every source
file. So a run that was interrupted resumes. Exit status: 0 if every block was examined, 1 if one
was not, 2 for bad input, 130 if interrupted.
"""

import collections
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator

import tb.run
from golden import command
from golden.files import kept_json, replacing
from hdl.arguments import whole
from hdl.deliver import package
from hdl.registry import all_blocks, find
from hdl.verilog import convert
from synth.modules import module_texts
from tb.compile import BUILD_DIR
from tb.mutate import Recording, collect
from tb.sweep import sources_key

__all__ = ["by_design", "edges", "main", "never_change"]

TOGGLES_DIR = BUILD_DIR / "toggles"
_COUNT = re.compile(r"C '(.*)' (\d+)")
_POINT = re.compile(r"(\w+)(?:\[(\d+)\])?:(0->1|1->0)")
_ESCAPED = "__05F"  # an underscore after another one, as Verilator writes it
_DECLARED = re.compile(
    r"^  (?:\(\*.*\*\) )?(?:input(?: +wire)?|reg) +(?:\[\d+:\d+\] +)?(\w+)", re.M
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
    """Input or register -> its bits without a rising or without a falling edge."""
    stuck: dict[str, set[int]] = {}
    for (signal, bit, _), number in counted.items():
        if not number:
            stuck.setdefault(signal, set()).add(bit)
    declared = _DECLARED.findall(verilog)
    return {name: _places(stuck[name]) for name in declared if name in stuck}


def _own_modules(recording: Recording, component: type) -> list[str]:
    """The top, the modules of ``component`` in it, and their plain submodules."""
    design = package(convert(recording.block, tb.run.TOP, recording.wrap))
    own = {name for name, each in design.blocks.items() if isinstance(each, component)}
    texts = module_texts(design.verilog)
    return [name for name in texts if name == design.name or name.split(".")[0] in own]


def by_design(recordings: list[Recording]) -> Iterator[list[Recording]]:
    """The recordings of each distinct design."""
    left = list(recordings)
    while left:
        same = [each for each in left if each.design == left[0].design]
        left = [each for each in left if each not in same]
        yield same


def _counted(verilog: str, modules: list[str]) -> str:
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
        modules = _own_modules(first, find(name).component)
        model = tb.run.build_model(
            first.block,
            wrap=first.wrap,
            transform=lambda design, modules=modules: _counted(design.verilog, modules),
            covered=True,
        )
        counted: dict[str, Edges] = {module: collections.defaultdict(int) for module in modules}
        for recording in recordings:
            work = tb.run.run_model(model, recording.module, **recording.arguments)
            coverage = (work / "coverage.dat").read_text()
            shutil.rmtree(work)
            for module in modules:
                for point, number in edges(coverage, module).items():
                    counted[module][point] += number
        texts = module_texts(model.design.verilog)
        found[first.test.split("::")[-1]] = {
            (signal if module == model.design.name else f"{module}.{signal}"): places
            for module in modules
            for signal, places in never_change(texts[module], counted[module]).items()
        }
    return found


def _print(name: str, found: dict[str, dict[str, str]]) -> None:
    for test, bits in found.items():
        listed = ", ".join(f"{signal}[{places}]" for signal, places in bits.items())
        print(f"{name} {test}: {listed or 'every bit changes'}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.toggles", description=__doc__)
    parser.add_argument("blocks", nargs="*", help="default: all")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=1)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.blocks) - set(all_blocks()))
    if unknown:
        print(f"tb.toggles: no block is called {unknown[0]!r}", file=sys.stderr)
        return 2
    folder = TOGGLES_DIR / sources_key([]) / str(options.seed)
    folder.mkdir(parents=True, exist_ok=True)
    is_broken = False
    try:
        for name in options.blocks or all_blocks():
            file = folder / f"{name}.json"
            found = kept_json(file)
            if not isinstance(found, dict):
                try:
                    found = examine(name, options.seed)
                except (AssertionError, RuntimeError, OSError) as error:
                    lines = str(error).splitlines() or [type(error).__name__]
                    print(f"{name}: not examined: {lines[0]}", file=sys.stderr)
                    is_broken = True
                    continue
                with replacing(file) as part:
                    part.write_text(json.dumps(found, indent=1) + "\n")
            _print(name, found)
    except KeyboardInterrupt:
        print("tb.toggles: interrupted; the same command resumes", file=sys.stderr)
        return command.INTERRUPTED
    print(f"written to {folder.relative_to(tb.run.ROOT)}")
    return int(is_broken)


if __name__ == "__main__":
    command.run("tb.toggles", main)
