"""Timing by OpenSTA, the program ``sta``, where it is on PATH.

It gets the netlist with plain names (c0, n0) instead of the design's, so that no tool has to escape
anything. RAM pins become ports. The wire loads that a Liberty file may switch on are switched off.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from synth.area import Libraries, SynthesisError
from synth.delays import Fo4
from synth.netlist import ENDS, STARTS, Netlist, Step, TimedPath

_TIMEOUT = 600.0  # seconds
_WIRES = re.compile(r"^\s*default_wire_load\w*\s*:[^;\n]*;?", re.M)
_POINT = re.compile(r"(\S+)\s+([v^])\s+(\S+)\s+\((\S+)\)\s*$")
_NUMBER = r"(-?[\d.]+)"
_SLACK = re.compile(rf"^\s*{_NUMBER}\s+slack", re.M)
_SETUP = re.compile(rf"^\s*{_NUMBER}\s+\S+\s+library setup time", re.M)
_MARK = "senbazuru: "


def _ports(netlist: Netlist) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Numbers of sources by kind and of sinks by kind."""
    sources: dict[str, list[int]] = {kind: [] for kind in STARTS}
    sinks: dict[str, list[int]] = {kind: [] for kind in ENDS}
    for number, (_, kind, _) in enumerate(netlist.sources):
        sources[kind].append(number)
    for number, (_, kind, _) in enumerate(netlist.sinks):
        sinks[kind].append(number)
    return sources, sinks


def _clocks(netlist: Netlist) -> set[int]:
    """Nets on clock pins."""
    return {
        net
        for instance in netlist.cells
        for pin, net in instance.nets.items()
        if pin in instance.cell.pins and instance.cell.pins[pin].is_clock
    }


def verilog(netlist: Netlist) -> str:
    """The netlist as cells c0, c1, ... and ports i0, i1, ..., o0, o1, ... of module ``top``."""
    nets: dict[int, str] = {}
    clocks = _clocks(netlist)
    for number, (net, _, _) in enumerate(netlist.sources):
        nets[net] = "clk" if net in clocks else f"i{number}"
    inputs = sorted({name for name in nets.values() if name != "clk"})
    outputs = [f"o{number}" for number in range(len(netlist.sinks))]
    lines = [
        f"module top({', '.join(['clk', *inputs, *outputs])});",
        *(f"input {name};" for name in ["clk", *inputs]),
        *(f"output {name};" for name in outputs),
    ]
    used = {net for instance in netlist.cells for net in instance.nets.values()}
    used |= {net for net, _, _ in netlist.sinks}
    for net in sorted(used - set(nets)):
        nets[net] = f"n{net}"
        lines.append(f"wire n{net};")
    for number, instance in enumerate(netlist.cells):
        pins = ", ".join(f".{pin}({nets[net]})" for pin, net in instance.nets.items())
        lines.append(f"{instance.cell.name} c{number} ({pins});")
    lines += [f"assign o{number} = {nets[net]};" for number, (net, _, _) in
              enumerate(netlist.sinks)]  # fmt: skip
    return "\n".join([*lines, "endmodule", ""])


def script(netlist: Netlist, liberties: Sequence[str], fo4: Fo4, clock_ns: float) -> str:
    """Tcl: the worst path of each kind. Times in ns and loads in pF."""
    sources, sinks = _ports(netlist)
    clocks = _clocks(netlist)
    used = {net for instance in netlist.cells for net in instance.nets.values()}
    used |= {net for net, _, _ in netlist.sinks}

    def inputs(kind: str) -> list[str]:
        return [f"i{n}" for n in sources[kind]
                if netlist.sources[n][0] in used - clocks]  # fmt: skip

    starts = {kind: f"[get_ports {{{' '.join(inputs(kind))}}}]" for kind in STARTS if inputs(kind)}
    ends = {
        kind: f"[get_ports {{{' '.join(f'o{n}' for n in sinks[kind])}}}]"
        for kind in ENDS
        if sinks[kind]
    }
    if clocks:
        starts["register"] = "[all_registers -clock_pins]"
        ends["register"] = "[all_registers -data_pins]"
    lines = [
        *(f"read_liberty {name}" for name in liberties),
        "set_cmd_units -time ns -capacitance pF",  # the first library has set its own
        "read_verilog netlist.v",
        "link_design top",
        f"create_clock -name clk -period {clock_ns:.9f} [get_ports clk]",
    ]
    for kind in ("input", "RAM"):
        if kind in starts:
            lines.append(f"set_input_delay 0 -clock clk {starts[kind]}")
    for kind in ("RAM", "output"):
        if kind in ends:
            lines.append(f"set_output_delay 0 -clock clk {ends[kind]}")
            lines.append(f"set_load {fo4.load_pf:.9f} {ends[kind]}")
    for start, chosen in starts.items():
        for end, to in ends.items():
            lines.append(f'puts "{_MARK}{start} to {end}"')
            lines.append(
                f"report_checks -path_delay max -from {chosen} -to {to} -format full "
                "-fields {slew} -digits 6"
            )
    return "\n".join([*lines, f'puts "{_MARK}end"', "exit", ""])


def power_script(
    netlist: Netlist,
    liberties: Sequence[str],
    fo4: Fo4,
    clock_ns: float,
    activities: Mapping[int, tuple[float, float]],
) -> str:
    """Tcl: ``report_power``, in W, with the activities of the inputs.

    activities: net of an input -> (transitions per cycle, share of cycles at 1)
    """
    sources, sinks = _ports(netlist)
    lines = [
        *(f"read_liberty {name}" for name in liberties),
        "set_cmd_units -time ns -capacitance pF",
        "read_verilog netlist.v",
        "link_design top",
        f"create_clock -name clk -period {clock_ns:.9f} [get_ports clk]",
    ]
    for kind in ("input", "RAM"):
        for number in sources[kind]:
            net = netlist.sources[number][0]
            if net in activities:
                activity, duty = activities[net]
                lines.append(f"set_input_delay 0 -clock clk [get_ports i{number}]")
                lines.append(
                    f"set_power_activity -input_ports [get_ports i{number}] "
                    f"-activity {activity:.9f} -duty {duty:.9f}"
                )
    for number in (*sinks["RAM"], *sinks["output"]):
        lines.append(f"set_load {fo4.load_pf:.9f} [get_ports o{number}]")
    lines += [f'puts "{_MARK}power"', "report_power -digits 12", f'puts "{_MARK}end"', "exit", ""]
    return "\n".join(lines)


def _path(netlist: Netlist, kind: str, text: str, clock_ns: float) -> TimedPath | None:
    slack = _SLACK.search(text)
    if slack is None:
        return None  # there is no path of this kind
    start_kind, _, end_kind = kind.partition(" to ")
    fanout: dict[int, int] = {}
    for instance in netlist.cells:
        for pin, net in instance.nets.items():
            if pin in instance.cell.pins and instance.cell.pins[pin].is_input:
                fanout[net] = fanout.get(net, 0) + 1
    for net, _, _ in netlist.sinks:
        fanout[net] = fanout.get(net, 0) + 1
    steps: list[Step] = []
    end = start = ""
    for line in text[: text.find("data arrival time")].splitlines():
        found = _POINT.search(line)
        if found is None:
            continue
        before = line[: found.start(2)].split()
        at, where = float(before[-1]), found[3]
        if "/" in where:
            cell, _, pin = where.partition("/")
            instance = netlist.cells[int(cell[1:])]
            end = instance.name
            if instance.cell.pins[pin].is_input:
                continue
            if not steps:
                start = instance.name
            net = instance.nets[pin]
            steps.append(
                Step(instance.cell.name, pin, netlist.names.get(net, ""), found[2] == "^",
                     fanout.get(net, 0), at)
            )  # fmt: skip
        elif where.startswith("i"):
            net, _, start = netlist.sources[int(where[1:])]
            steps.append(
                Step("", start, netlist.names.get(net, ""), found[2] == "^",
                     fanout.get(net, 0), at)
            )  # fmt: skip
        elif where.startswith("o"):
            end = netlist.sinks[int(where[1:])][2]
    setup = _SETUP.search(text)
    return TimedPath(
        start_kind, end_kind, start, netlist.module_of(start), end, netlist.module_of(end),
        round(clock_ns - float(slack[1]), 6), -float(setup[1]) if setup else 0.0, tuple(steps),
    )  # fmt: skip


def _run(program: str, netlist: Netlist, libraries: Libraries, script: str) -> tuple[str, str]:
    """("OpenSTA VERSION", what it prints). SynthesisError where ``sta`` fails."""
    with tempfile.TemporaryDirectory(prefix="sta-") as name:
        folder = Path(name)
        for file, text in zip(_files(libraries), libraries.texts, strict=True):
            (folder / file).write_text(_WIRES.sub("", text))
        (folder / "netlist.v").write_text(verilog(netlist))
        (folder / "run.tcl").write_text(script)
        try:
            done = subprocess.run(
                [program, "-no_splash", "-exit", "run.tcl"], cwd=folder, capture_output=True,
                text=True, errors="replace", timeout=_TIMEOUT, check=False,
            )  # fmt: skip
            version = subprocess.run(
                [program, "-version"], capture_output=True, text=True, timeout=60, check=False
            ).stdout.strip()
        except subprocess.TimeoutExpired:
            raise SynthesisError(f"OpenSTA is not done after {_TIMEOUT:.0f} s") from None
        except OSError as error:
            raise SynthesisError(f"{program}: {error.strerror or error}") from None
    text = done.stdout
    errors = [line for line in (text + done.stderr).splitlines() if line.startswith("Error")]
    if errors or f"{_MARK}end" not in text:
        reason = errors[0] if errors else f"exit status {done.returncode}"
        raise SynthesisError(f"OpenSTA: {reason}")
    return f"OpenSTA {version}".strip(), text


def _files(libraries: Libraries) -> list[str]:
    return [f"{number}.lib" for number in range(len(libraries.texts))]


def paths(
    program: str, netlist: Netlist, libraries: Libraries, fo4: Fo4, clock_ns: float
) -> tuple[str, list[TimedPath]]:
    """("opensta VERSION", the worst path of every kind). SynthesisError where ``sta`` fails."""
    said = script(netlist, _files(libraries), fo4, clock_ns)
    version, text = _run(program, netlist, libraries, said)
    found = []
    for part in text.split(_MARK)[1:-1]:
        kind, _, report = part.partition("\n")
        path = _path(netlist, kind.strip(), report, clock_ns)
        if path is not None:
            found.append(path)
    return version, sorted(found, key=lambda path: -path.ns)


def power(
    program: str,
    netlist: Netlist,
    libraries: Libraries,
    fo4: Fo4,
    clock_ns: float,
    activities: Mapping[int, tuple[float, float]],
) -> tuple[str, dict[str, float]]:
    """("OpenSTA VERSION", mW by "internal", "switching", "leakage" and "total").

    ``activities`` as for ``power_script``. Version 2.0 ignores activities of inner pins and
    estimates those. So it agrees with recorded toggles only where nothing is to be estimated, as in
    a chain of inverters. SynthesisError where ``sta`` fails.
    """
    said = power_script(netlist, _files(libraries), fo4, clock_ns, activities)
    version, text = _run(program, netlist, libraries, said)
    found = re.search(r"^Total((?:\s+\S+){4})", text, re.M)
    if found is None:
        raise SynthesisError("OpenSTA: no line of the total power")
    kinds = ("internal", "switching", "leakage", "total")
    watts = map(float, found[1].split())
    return version, dict(zip(kinds, (1000 * each for each in watts), strict=True))
