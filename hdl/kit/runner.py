"""run.sh and README.md of a kit."""

from collections.abc import Iterable, Iterator, Mapping

from hdl.back.licence import LICENCE
from hdl.kit.episodes import Vectors
from hdl.kit.sequencer import FLOWS, PROGRESS, SETTLE

# The make variables serve a Verilator whose build did not record its compiler. They are no part of
# MAKEFLAGS in the environment, which a make that runs the script has set.
_SCRIPT = """\
#!/bin/sh
# {licence}
# Usage: sh run.sh [icarus|verilator [+PLUSARG...]]. Runs the testbench of {name}.
# Status 0: PASS. 1: FAIL. 2: it does not compile, or the simulator is missing.
cd "$(dirname "$0")" || exit 2
tool=${{1:-icarus}}
[ $# -eq 0 ] || shift
mkdir -p build || exit 2
rm -f build/status
case $tool in
icarus)
    iverilog -g2005 -s {name}_tb -o build/{name}_tb.vvp -f {name}_tb.f || exit 2
    {{ vvp -i -N build/{name}_tb.vvp "$@"; echo $? >build/status; }} 2>&1 | tee build/icarus.log
    ;;
verilator)
    verilator=${{VERILATOR:-verilator}}
    made="$("$verilator" --getenv VERILATOR_ROOT 2>/dev/null)/include/verilated.mk"
    flags=
    if grep -q '^CFG_CXXFLAGS_STD_NEWEST = *$' "$made" 2>/dev/null; then
        flags="CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 \
CFG_CXXFLAGS_COROUTINES=-fcoroutines"
    fi
    "$verilator" --binary --timing -j 2 --Mdir build/verilator \\
        --x-assign unique --x-initial unique ${{flags:+-MAKEFLAGS "$flags"}} \\
        --top-module {name}_tb {name}.vlt -f {name}_tb.f >build/verilator.build.log 2>&1 ||
        {{ cat build/verilator.build.log; exit 2; }}
    {{ build/verilator/V{name}_tb +verilator+rand+reset+2 "$@"; echo $? >build/status; }} 2>&1 |
        tee build/verilator.log
    ;;
*)
    echo "run.sh: the simulator must be icarus or verilator, not '$tool'" >&2
    exit 2
    ;;
esac
[ "$(cat build/status)" -eq 0 ] && grep -q '^PASS {name}:' "build/$tool.log" || exit 1
"""


def run_script(name: str) -> str:
    """One command that runs the testbench of block ``name`` in either simulator."""
    return _SCRIPT.format(name=name, licence=LICENCE)


_FILES = {
    ".v": "the block, Verilog-2005, with the modules that it needs",
    ".json": "ports, fields, streams, codes and timing as data",
    ".f": "list of the Verilog files",
    ".core": "package for FuseSoC (CAPI2)",
    ".vlt": "waivers for Verilator's lint: give it before the Verilog",
    ".sdc": "clock and delays of ports, as variables",
    "_pkg.sv": "constants for SystemVerilog",
    ".h": "constants for C",
    ".rdl": "registers as SystemRDL",
    "_template.vh": "declarations and an instance, to copy or to include in a module",
    "_rams.csv": "RAM macros: instances, width, depth, bits per write enable, ports, latency",
    "_tb.v": "self-checking testbench, Verilog-2005",
    "_tb.f": "list of the files of the testbench",
}


_RESET = (
    "The reset (`rst`, `aresetn` of a wrapper) acts at a rising edge of the clock, and one cycle",
    "of it is enough. In that cycle, valid and ready may still be high from before: ignore both",
    "while the reset is active, and reset both ends of a stream or bus in the same cycle.",
)


def readme(
    description: Mapping, files: Iterable[str], vectors: Vectors | None, note: Iterable[str] = ()
) -> str:
    """Tells what the files are, and gives the command of the testbench.

    note: lines that follow what the README says of the reset.
    """
    name, files = description["name"], set(files)
    lines = [f"# {name}", "", f"Licence of all files: Apache-2.0 (`{LICENCE}`).", ""]
    lines += ["| file | content |", "|---|---|"]
    lines += [
        f"| `{name}{end}` | {text} |" for end, text in _FILES.items() if f"{name}{end}" in files
    ]
    reset = _RESET if any(port["role"] == "reset" for port in description["ports"]) else ()
    if note:
        reset = (*reset, "", *note)
    if vectors is None:
        lines += ["", *reset]
    else:
        lines += ["| `vectors/` | golden words that the testbench reads |"]
        lines += ["| `run.sh` | runs the testbench |", "", *reset, ""]
        lines += ["Run the testbench under Icarus Verilog or Verilator:", ""]
        lines += ["    sh run.sh icarus", "    sh run.sh verilator", ""]
        lines += [f"The expected words are those of `{vectors.golden}`. Each episode runs at full"]
        lines += ["rate, and with pseudo-random idle and stall cycles:", ""]
        lines += _episodes(description, vectors)
        cycles = len(FLOWS) * sum(
            SETTLE + max(map(len, episode.words.values()), default=0)
            for episode in vectors.episodes
        )
        lines += ["", f"It takes at least {cycles:,} cycles. It prints a line every {PROGRESS:,}"]
        lines += ["cycles of an episode: the time of the first tells that of the rest."]
    return "\n".join([*lines, ""])


def _episodes(description: Mapping, vectors: Vectors) -> Iterator[str]:
    """Table of what the episodes cover: their number, words sent, words expected."""
    sinks = {each["name"] for each in description["streams"] if each["direction"] == "output"}
    counts: dict[str, list[int]] = {}
    for episode in vectors.episodes:
        found = counts.setdefault(episode.name, [0, 0, 0])
        found[0] += 1
        for stream, words in episode.words.items():
            found[1 + (stream in sinks)] += len(words)
    yield "| what an episode covers | episodes | words sent | words expected |"
    yield "|---|---:|---:|---:|"
    for name, (number, sent, expected) in counts.items():
        yield f"| {name} | {number} | {sent} | {expected} |"
